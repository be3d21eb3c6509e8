"""Run several processes as one engine: a leader sends program calls to all other processes."""
