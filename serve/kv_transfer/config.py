"""Configure a server's role in disaggregated serving: --kv-role or vLLM's --kv-transfer-config."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Literal, get_args

from convert.files.json_object import Checks, check_fields, parse_flag

ROLE_FLAG, CONFIG_FLAG = "--kv-role", "--kv-transfer-config"
KEY_FLAG = "--kv-transfer-key-file"
DEFAULT_PORT, LAST_PORT = 14579, 65535
PULL_S = 30.0
"""Default timeout of a pull, for one prompt's pages."""
CONNECTOR = "Eagle3JaxConnector"
GIB = 2**30
DEFAULT_BYTES = 4 * GIB
"""Default size of the host memory through which pages are transferred."""
KVRole = Literal["producer", "consumer", "both"]
ROLES: tuple[KVRole, ...] = get_args(KVRole)
SECONDS = {"expiry_s": "expiry_s", "pull_timeout_s": "pull_s"}
ADDRESS = re.compile(r"(\[.+\]|[^:\[\]]+):([0-9]{1,5})")
OURS = {"engine_id": "engine_id", "kv_ip": "host", "kv_port": "port"}
TEXT = (lambda value: isinstance(value, str), "a text")
FIELDS: Checks = {
    "kv_connector": TEXT,
    "kv_role": TEXT,
    "engine_id": TEXT,
    "kv_ip": TEXT,
    "kv_port": (
        lambda value: type(value) is int and 0 <= value <= LAST_PORT,
        f"an integer in 0..{LAST_PORT}",
    ),
    "kv_connector_extra_config": (lambda value: isinstance(value, dict), "an object"),
}
"""vLLM's fields that have a meaning here."""
DURATION = (
    lambda value: type(value) in (int, float) and 0 < value < 1e6,
    "seconds above 0",
)
EXTRA: Checks = {
    "expiry_s": DURATION,
    "pull_timeout_s": DURATION,
    "producers": (
        lambda value: isinstance(value, list) and None not in map(_read_address, value),
        "a list of HOST:PORT, each the kv_ip and kv_port of a producer, IPv6 as "
        f"[::1]:{DEFAULT_PORT}",
    ),
}
"""Our fields of kv_connector_extra_config."""


@dataclass(frozen=True)
class KVTransferConfig:
    """A server's role in transfers: producers keep prompts' pages, consumers fetch them.

    A producer serves pages at `host` and `port` (0: any free port), which it also sends to
    consumers. It keeps unfetched pages for `expiry_s` from the answer. A consumer accepts pages
    from `producers` only, because false pages would affect all requests with the same prefix;
    `pull_s` limits the time for a prompt's pages. Both ends need `shared_key`; without it,
    addresses beyond this machine raise ValueError.
    """

    role: KVRole
    engine_id: str | None = None
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    expiry_s: float = 480.0
    producers: tuple[tuple[str, int], ...] = (("127.0.0.1", DEFAULT_PORT),)
    pull_s: float = PULL_S
    shared_key: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        here = {f"kv_ip {self.host!r}": self.host} if self.produces else {}
        requested = {f"producers {host!r}": host for host, _ in self.producers if self.consumes}
        far = [name for name, host in (here | requested).items() if not _is_loopback(host)]
        if far and not self.shared_key:
            raise ValueError(
                f"{CONFIG_FLAG} {far[0]} is not a loopback address, so anybody there could send "
                f"or read pages: give {KEY_FLAG} FILE, the same key at both ends"
            )

    @property
    def produces(self) -> bool:
        """True if the server keeps pages for other servers."""
        return self.role != "consumer"

    @property
    def consumes(self) -> bool:
        """True if the server fetches pages."""
        return self.role != "producer"


def read_kv_transfer_config(
    role: str | None, text: str | None, shared_key: bytes = b""
) -> KVTransferConfig | None:
    """Parse the flags, None without transfers; ValueError names flag and field."""
    if text is None:
        if role is not None:
            return KVTransferConfig(_role(role, ROLE_FLAG), shared_key=shared_key)
        if shared_key:
            raise ValueError(f"{KEY_FLAG} needs {ROLE_FLAG} or {CONFIG_FLAG}")
        return None
    if role is not None:
        raise ValueError(f"give one of {ROLE_FLAG} and {CONFIG_FLAG}")
    fields = parse_flag(CONFIG_FLAG, text, FIELDS)
    connector = fields.pop("kv_connector", CONNECTOR)
    if connector != CONNECTOR:
        raise ValueError(
            f"{CONFIG_FLAG} kv_connector: {connector!r} is of another engine; leave it out, or "
            f"say {CONNECTOR}"
        )
    if "kv_role" not in fields:
        raise ValueError(f"{CONFIG_FLAG} kv_role must be kv_producer, kv_consumer or kv_both")
    given = {OURS[name]: value for name, value in fields.items() if name in OURS}
    given["role"] = _role(str(fields["kv_role"]).removeprefix("kv_"), f"{CONFIG_FLAG} kv_role")
    given |= _read_extra(fields.get("kv_connector_extra_config", {}))
    return KVTransferConfig(**given, shared_key=shared_key)


def as_address(host: str, port: int) -> tuple[str, int]:
    """Normalise an address for comparison: IP addresses in canonical text, names in lower case."""
    host = host.removeprefix("[").removesuffix("]")
    try:
        return str(ip_address(host)), port
    except ValueError:
        return host.lower(), port


def _read_extra(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return our fields of kv_connector_extra_config."""
    given = check_fields(f"{CONFIG_FLAG} kv_connector_extra_config", extra, EXTRA)
    read = {ours: float(given[name]) for name, ours in SECONDS.items() if name in given}
    if "producers" in given:
        return read | {"producers": tuple(map(_read_address, given["producers"]))}
    return read


def _read_address(text: Any) -> tuple[str, int] | None:
    """Read HOST:PORT; None for anything else."""
    match = ADDRESS.fullmatch(text) if isinstance(text, str) else None
    if match is None or not 0 < int(match[2]) <= LAST_PORT:
        return None
    return as_address(match[1], int(match[2]))


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _role(text: str, where: str) -> Any:
    if text not in ROLES:
        raise ValueError(f"{where} must be one of {', '.join(ROLES)}; got {text!r}")
    return text
