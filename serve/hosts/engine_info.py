"""Encode facts about process 0's engine for a leader without devices."""

import json
import struct

from eagle3_jax.engine.programs.remote import EngineInfo

NUMBER = struct.Struct("<I")
"""Number of a question, sent before it and before its answer."""


def to_json(info: EngineInfo) -> bytes:
    """Encode the fields as a JSON object."""
    return json.dumps(info._asdict()).encode()


def from_json(text: bytes) -> EngineInfo:
    """Decode the output of `to_json`."""
    fields = json.loads(text)
    return EngineInfo(**fields | {"programs": tuple(fields["programs"])})
