"""Images to features: items, packing, MoonViT's programs."""
