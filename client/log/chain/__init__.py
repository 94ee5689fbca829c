"""The layout ``chain``: a log as a list of ledgers. Complete; new features go into streams."""
