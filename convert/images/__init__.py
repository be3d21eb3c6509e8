"""Turn image files into patches by Kimi-K2.5's released rule: decode, resize, pad, cut."""
