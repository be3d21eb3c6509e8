"""What several processes of an engine tell each other: calls, questions and answers."""
