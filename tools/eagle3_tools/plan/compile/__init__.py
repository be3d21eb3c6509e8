"""Rounds compiled for GPUs from shapes alone: what they launch and hold."""
