"""Which cases are measured, and which a dry run goes through."""
