"""What is accepted of drafts: tasks, those who answer them, probabilities."""
