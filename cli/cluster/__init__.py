"""`octavo cluster`: the metadata and the health of a cluster."""
