"""Parts of `eagle3-bench sweep`: a server's throughput and latency over lengths and concurrency."""
