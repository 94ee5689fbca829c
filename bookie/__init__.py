"""One storage server: journal, write cache, entry logs, index, and the server around them."""
