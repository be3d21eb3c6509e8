"""Several processes as one engine: process 0 leads, the others run what it sends them."""
