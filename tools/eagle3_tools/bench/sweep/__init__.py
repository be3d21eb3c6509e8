"""A server's throughput and latency over lengths and concurrency: `eagle3-bench sweep`."""
