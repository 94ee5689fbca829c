"""What all parts of repair use: documents, plans, settled ranges, the bookie in whose process they run."""
