"""Rows that the experts multiply with their weights, quantised if the format says so."""
