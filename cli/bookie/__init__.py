"""`octavo bookie`: run a bookie, and work on the files of a stopped one."""
