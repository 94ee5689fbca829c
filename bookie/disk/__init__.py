"""Files and disks: the seam through which a bookie reaches the operating system."""
