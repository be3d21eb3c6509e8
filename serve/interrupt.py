"""Ctrl-C outside the server, which handles signals itself."""

import os
import signal
import sys
from typing import NoReturn

INTERRUPTED = 130


def leave(*_: object) -> NoReturn:
    """Ends the process at once; a regular exit would crash on programs that JAX still runs."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(INTERRUPTED)


def leave_on_interrupt() -> None:
    """Makes Ctrl-C end the process without an exception, which aborts imports of extensions."""
    signal.signal(signal.SIGINT, leave)


def raise_on_interrupt() -> None:
    """Makes Ctrl-C a KeyboardInterrupt again, so that a progress bar can clean up."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
