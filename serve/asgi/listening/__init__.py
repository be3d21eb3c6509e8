"""The socket side of the server: accepting, connection timeouts, TLS and shutdown."""
