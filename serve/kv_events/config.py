"""Parse --kv-events-config, which has vLLM's fields."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec

from convert.files.json_object import Checks, parse_flag

FLAG = "--kv-events-config"
HASHES_VARIABLE = "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"
SCHEMES = ("tcp://", "ipc://", "inproc://")
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
EVERYWHERE = ("*", "0.0.0.0")
SWITCH = (lambda value: type(value) is bool, "true or false")
ADDRESS = (lambda value: isinstance(value, str), "an address of ZeroMQ")
COUNT = (lambda value: type(value) is int and value > 0, "an integer above 0")
FIELDS: Checks = {
    "enable_kv_cache_events": SWITCH,
    "publisher": (lambda value: value in ("zmq", "null"), "'zmq' or 'null'"),
    "endpoint": ADDRESS,
    "replay_endpoint": ADDRESS,
    "buffer_steps": COUNT,
    "hwm": COUNT,
    "max_queue_size": COUNT,
    "topic": (lambda value: isinstance(value, str), "a text"),
    "lookahead_token_ids": SWITCH,
}
"""Fields of the flag. All but the last are vLLM's."""


@dataclass(frozen=True)
class KVEventsConfig:
    """Publication of KV events: under `topic` at `endpoint`.

    The last `buffer_steps` batches are sent again on request at `replay_endpoint`. `hwm` limits the
    batches that wait for a subscriber before it misses some, `max_queue_size` those that wait for
    the publisher's thread. `lookahead_token_ids`, our own field, adds these tokens to events;
    readers for vLLM before 0.33 may refuse it. `int_hashes` encodes keys as 64-bit numbers instead
    of bytes.
    """

    endpoint: str = "tcp://127.0.0.1:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""
    lookahead_token_ids: bool = True
    int_hashes: bool = True

    @property
    def listens(self) -> bool:
        """True if subscribers connect to the endpoint; otherwise the publisher connects to theirs.

        vLLM's publisher decides in the same way. It also connects to loopback addresses.
        """
        host = _host(self.endpoint)
        return host in (*LOOPBACK, *EVERYWHERE) or "::" in host

    @property
    def exposed(self) -> bool:
        """True if other machines can connect and read what is published."""
        listening = [self.replay_endpoint or "", self.endpoint if self.listens else ""]
        return any(_host(endpoint) not in LOOPBACK for endpoint in filter(None, listening))


def _host(endpoint: str) -> str:
    """Return the endpoint's host, a loopback address for endpoints within the machine."""
    tcp = endpoint.startswith("tcp://")
    return endpoint.removeprefix("tcp://").rpartition(":")[0] if tcp else LOOPBACK[0]


def read_kv_events_config(
    text: str | None, environment: Mapping[str, str]
) -> KVEventsConfig | None:
    """Parse the configuration, None if events are off; ValueError names flag and field."""
    if text is None:
        return None
    fields = parse_flag(FLAG, text, FIELDS)
    enabled = fields.pop("enable_kv_cache_events", False)
    publisher = fields.pop("publisher", "zmq")
    for name in ("endpoint", "replay_endpoint"):
        if not str(fields.get(name, SCHEMES[0])).startswith(SCHEMES):
            kinds = ", ".join(SCHEMES)
            raise ValueError(f"{FLAG} {name} must begin with {kinds}; got {fields[name]!r}")
    if not enabled or publisher == "null":
        return None
    if not _packages_are_installed():
        raise ValueError(f"{FLAG} needs the extra kv-events: pip install 'eagle3-jax[kv-events]'")
    return KVEventsConfig(**fields, int_hashes=environment.get(HASHES_VARIABLE, "1") != "0")


def _packages_are_installed() -> bool:
    with suppress(ModuleNotFoundError):
        return find_spec("zmq") is not None and find_spec("msgspec") is not None
    return False
