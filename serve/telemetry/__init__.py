"""Metrics, logs and traces of requests and of the engine."""
