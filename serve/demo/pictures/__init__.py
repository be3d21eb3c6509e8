"""The pair that sees: pictures of shapes, questions about them, and how it is made."""
