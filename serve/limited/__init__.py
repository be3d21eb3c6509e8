"""Work on data from clients in processes that the kernel ends when they take too much."""
