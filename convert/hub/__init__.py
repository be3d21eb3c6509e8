"""Find checkpoints by directory or by Hugging Face hub id."""
