"""Parts of `eagle3-bench accept`: tasks, the engines and servers that answer them, KV scales."""
