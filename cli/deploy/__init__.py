"""`octavo deploy`: installs the systemd units and prepares a host for its bookies."""
