"""Which clients a gateway serves, and with what: their authentication, and their rights to topics and groups."""
