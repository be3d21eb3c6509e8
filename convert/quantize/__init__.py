"""Quantise published checkpoints file to file, as AMD Quark and its peers write them."""
