"""The seam between logs and their layouts: what each layout provides, and what it is given."""
