"""What process 0 tells a leader without devices of the engine that it has built."""

import json
import struct

from eagle3_jax.engine.programs.processes.remote import Built

NUMBER = struct.Struct("<I")
"""Of a question, before it and before its answer."""


def to_json(built: Built) -> bytes:
    """As a JSON object of its fields."""
    return json.dumps(built._asdict()).encode()


def from_json(text: bytes) -> Built:
    """What `to_json` was given."""
    fields = json.loads(text)
    return Built(**fields | {"programs": tuple(fields["programs"])})
