"""Read published checkpoints: match their weights, in any form, to a model."""
