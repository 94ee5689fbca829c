"""Jobs over whole clusters, each a plain function of a Spark session."""
