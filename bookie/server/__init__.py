"""Connections: requests in, answers out, in bounded memory."""
