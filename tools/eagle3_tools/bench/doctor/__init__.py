"""Parts of eagle3-bench doctor: what is looked at on a node, and what each look found."""
