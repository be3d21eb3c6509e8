"""The vision pair: pictures of shapes, questions about them, and its training recipe."""
