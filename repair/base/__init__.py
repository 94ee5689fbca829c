"""The parts that all of repair uses: documents, plans, settled ranges, the bookie in whose process they run."""
