"""Images of prompts: where they may stand, and the rows that the devices keep of them."""
