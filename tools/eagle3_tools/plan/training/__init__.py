"""`eagle3-plan train`: memory and time of training a draft with its target."""
