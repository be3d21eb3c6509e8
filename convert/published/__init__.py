"""Published checkpoints: their weights in any form, matched to a model and read."""
