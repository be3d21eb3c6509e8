"""`eagle3-plan train`: what training a draft beside its target needs, and how long it takes."""
