"""Prompts' pages from the server that ran them to the one that goes on with them."""
