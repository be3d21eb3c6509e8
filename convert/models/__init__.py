"""The tables between published tensors and our parameters, and config.json on the way back."""
