"""Short representations of configuration values for error messages."""

import reprlib
from typing import Any

_REPR = reprlib.Repr()
_REPR.maxlevel = 3
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = 8
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 80


def brief(value: Any) -> str:
    """Return the value's repr, truncated if it is long or deeply nested."""
    return _REPR.repr(value)
