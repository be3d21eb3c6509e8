"""Paged attention and its cache: what operations on pools of pages share."""
