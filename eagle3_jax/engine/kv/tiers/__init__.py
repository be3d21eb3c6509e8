"""Memory below the GPUs' that pages of the prefix cache go down to and come back from."""
