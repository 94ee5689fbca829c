"""Consumer groups, classic protocol: the members of a group share its partitions. All of it is pure."""
