"""Identity and rights of the other end of a connection: TLS, certificates, keys, principals, roles."""
