"""Process client data in limited processes, which the kernel ends at their limits."""
