"""`octavo repair`: what repair does, and what operators tell it."""
