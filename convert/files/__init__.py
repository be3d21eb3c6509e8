"""Read files on disk: JSON objects, safetensors, and boxes (slices) of their tensors."""
