"""The argument parser of all commands: mistakes cost one line."""

import argparse
from typing import NoReturn


class OneLineParser(argparse.ArgumentParser):
    """Reports a mistake in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Ends the process with status 2."""
        self.exit(2, f"{self.prog}: error: {message}\n")
