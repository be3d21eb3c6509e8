"""The engine's thread, its requests and its errors; knows nothing of HTTP."""
