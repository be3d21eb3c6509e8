"""`pytest --context-parts D`: devices that divide the contexts of the pair that tests share."""

PARTS = 1
"""What the option says; set before any test is imported."""
