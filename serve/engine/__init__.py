"""The engine's thread, its requests and its errors, independent of HTTP."""
