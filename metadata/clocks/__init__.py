"""Time that no operator sets, and time that is proven by several clocks."""
