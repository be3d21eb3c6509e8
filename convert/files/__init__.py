"""Files as they lie on disk: JSON objects, safetensors, and boxes of their tensors."""
