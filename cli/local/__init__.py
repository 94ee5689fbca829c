"""`octavo up`, `down` and `status`: a whole cluster on this machine."""
