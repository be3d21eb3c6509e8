"""Choice of the cases that are measured, and of those in a dry run."""
