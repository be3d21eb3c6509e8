"""Limits of file descriptors: every connection is one, and a process may have only so many."""

import os
import resource

MOST = 65_536
"""More are of no use here, and some libraries walk through all that there may be."""


def raise_limit() -> None:
    """Raises the soft limit to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def room_for_connections() -> int:
    """How many connections the process may have besides what it has open, and a quarter of all for
    what it will open.

    Raises OSError where that is none.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MOST if soft == resource.RLIM_INFINITY else soft
    opened = len(os.listdir("/dev/fd"))
    room = limit - limit // 4 - opened
    if room < 1:
        raise OSError(
            f"{limit} descriptors are too few: {opened} are open before the first connection, and "
            "a quarter is kept for files; allow more (ulimit -n)"
        )
    return room
