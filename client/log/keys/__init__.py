"""Keys of the entries of a log: their stored form, the window, and what a leader knows of them."""
