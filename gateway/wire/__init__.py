"""Kafka's protocol on sockets: bounded frames, versions, and the forms of requests and answers."""
