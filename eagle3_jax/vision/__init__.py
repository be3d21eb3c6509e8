"""Image features: items, packing, and MoonViT's programs."""
