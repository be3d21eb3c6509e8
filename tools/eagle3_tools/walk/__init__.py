"""A walk through every feature on one device: small requests whose tokens are known before."""
