"""What is known of a compiled kernel, whoever's GPU it is for."""

import re


class Kernel:
    """matrix: the matrix instructions in its code, with how often each is there."""

    name: str
    matrix: dict[str, int]

    def is_called(self, name: str) -> bool:
        """Whether this is its name, or that with the number that XLA gives to namesakes."""
        return re.fullmatch(rf"{re.escape(name)}(__\d+)?", self.name) is not None
