"""Messages between the processes of an engine: calls, questions and answers."""
