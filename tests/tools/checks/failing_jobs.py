"""A job for worker processes that ends as its argument says."""

import os
import signal
import sys
import time

from eagle3_tools.checks.pool import Last


def do(what: str) -> str | Last:
    if what == "crash":
        print("F0000 Check failed: registers", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    if what == "hang":
        time.sleep(60)
    if what == "raise":
        raise ValueError("no such tile")
    said = f"{what} {os.getpid()}"
    return Last(said) if what == "last" else said
