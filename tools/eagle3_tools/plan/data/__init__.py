"""Constants of the planner: GPUs, and pairs at their published widths."""
