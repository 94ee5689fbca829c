"""`octavo gateway`: what its process shows of itself."""
