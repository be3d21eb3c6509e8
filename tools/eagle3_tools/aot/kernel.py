"""Properties of a compiled kernel that do not depend on the vendor."""

import re


class Kernel:
    """A compiled kernel. matrix: count of each matrix instruction in its code."""

    name: str
    matrix: dict[str, int]

    def is_called(self, name: str) -> bool:
        """Return whether this is the kernel's name, with or without XLA's number for duplicates."""
        return re.fullmatch(rf"{re.escape(name)}(__\d+)?", self.name) is not None
