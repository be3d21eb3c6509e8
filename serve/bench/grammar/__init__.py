"""What `eagle3-bench grammar` is made of."""
