"""Values of a file inside an error message."""

import reprlib
from typing import Any

_REPR = reprlib.Repr()
_REPR.maxlevel = 3
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = 8
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 80


def brief(value: Any) -> str:
    """The value's repr, cut where it is longer or deeper than a reader wants."""
    return _REPR.repr(value)
