"""What the experts multiply with their weights: rows, quantised where the format says so."""
