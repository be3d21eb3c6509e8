"""A function that a model may call."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ToolSpec:
    """parameters: the JSON schema of its arguments; empty where any will do."""

    name: str
    parameters: Mapping[str, Any]
