"""The socket side of the server: who is accepted, how long a client may take, how it ends."""
