"""Rounds of Kimi-K2.5, kernel by kernel, by the model of the compiled code."""
