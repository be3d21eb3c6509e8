"""What other libraries make of a case's arguments."""
