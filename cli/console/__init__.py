"""`octavo console`: a web page that shows a running cluster, and its server."""
