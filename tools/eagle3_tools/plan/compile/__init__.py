"""Rounds compiled for GPUs from shapes alone: their launches and memory."""
