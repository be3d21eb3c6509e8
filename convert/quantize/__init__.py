"""Quantise published checkpoints file to file, in the formats of AMD Quark and similar tools."""
