"""AMD's GPUs: their compiler without one, what its code objects say, and what their code does."""
