"""Images of prompts: their positions, and the rows that devices keep of them."""
