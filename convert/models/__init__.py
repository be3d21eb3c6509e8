"""Tables between published tensors and our parameters, and writers of config.json."""
