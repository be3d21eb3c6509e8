"""Work on client data in processes that the kernel ends at their limits."""
