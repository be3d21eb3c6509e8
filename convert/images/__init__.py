"""Image files to patches, as Kimi-K2.5 was released with: decode, resize, pad, cut."""
