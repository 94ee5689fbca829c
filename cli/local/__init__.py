"""`octavo up`: a whole cluster on this machine."""
