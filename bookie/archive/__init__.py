"""Objects that hold the entries of settled ranges, and the stores in which they lie. No bookie moves entries yet."""
