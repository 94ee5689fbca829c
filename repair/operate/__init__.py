"""What operators ask of repair."""
