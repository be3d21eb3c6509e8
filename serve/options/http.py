"""Flags of the server on the web: CORS, a path prefix, TLS."""

import argparse
import re
from dataclasses import dataclass
from pathlib import Path

from convert.files.json_object import parse_value

ANY = ("*",)
HOST = re.compile(r"(\*\.)?[\w-]+(\.[\w-]+)*|[0-9a-fA-F:.]+")
CLIENT_CERTIFICATES = {0: "not asked for", 1: "optional", 2: "required"}
"""Values of --ssl-cert-reqs, as in Python's ssl.VerifyMode."""


@dataclass(frozen=True)
class Cors:
    """Permissions of pages of other origins, under the names of Starlette's CORSMiddleware."""

    allow_origins: tuple[str, ...]
    allow_methods: tuple[str, ...] = ANY
    allow_headers: tuple[str, ...] = ANY
    allow_credentials: bool = False


@dataclass(frozen=True)
class Tls:
    """TLS files in PEM form.

    `certfile` may hold the key too. `ca_certs` and `cert_reqs` (as ssl.VerifyMode) verify clients.
    """

    certfile: Path
    keyfile: Path | None = None
    ca_certs: Path | None = None
    cert_reqs: int = 0


@dataclass(frozen=True)
class HttpOptions:
    """Values of the web flags.

    `cors` None lets pages of other origins read nothing. `root_path` is the prefix that a proxy
    removes, without a final slash. `checks_hosts` refuses requests for names not in
    `allowed_hosts`.
    """

    cors: Cors | None = None
    root_path: str = ""
    tls: Tls | None = None
    allowed_hosts: tuple[str, ...] = ()
    checks_hosts: bool = False


def add_http_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags as a group, under vLLM's names."""
    group = parser.add_argument_group("web")
    add = group.add_argument
    lists = {"type": _json_list, "metavar": "JSON"}
    add("--allowed-origins", **lists, help='whose pages may ask, ["https://a.org"] or ["*"]')
    add("--allowed-methods", **lists, help="of those pages; default: all")
    add("--allowed-headers", **lists, help="of those pages; default: all")
    add(
        "--allow-credentials",
        action="store_true",
        help="those pages may send cookies and certificates; not with the origin *",
    )
    add(
        "--allowed-hosts",
        nargs="+",
        type=_host,
        default=(),
        metavar="NAME",
        help="names that requests may be for, besides localhost and the server's addresses: "
        "llm.example.org, *.example.org or * for any; without an API key on a loopback address "
        "others are refused",
    )
    add("--root-path", default="", metavar="PATH", help="that a proxy in front takes off, /llm")
    add("--ssl-certfile", type=Path, metavar="FILE", help="serve HTTPS with this certificate (PEM)")
    add("--ssl-keyfile", type=Path, metavar="FILE", help="its key, where it is not in that file")
    add("--ssl-ca-certs", type=Path, metavar="FILE", help="who may sign clients' certificates")
    add(
        "--ssl-cert-reqs",
        type=int,
        choices=tuple(CLIENT_CERTIFICATES),
        default=0,
        help="clients' certificates: "
        + ", ".join(f"{value} {text}" for value, text in CLIENT_CERTIFICATES.items()),
    )


def read_http_options(flags: argparse.Namespace) -> HttpOptions:
    """Read the web flags; ValueError, naming the flag, for invalid or ineffective values."""
    path = flags.root_path.rstrip("/")
    if path and not path.startswith("/"):
        raise ValueError(f"--root-path must begin with a slash; got {flags.root_path!r}")
    return HttpOptions(_read_cors(flags), path, _read_tls(flags), tuple(flags.allowed_hosts))


def _read_cors(flags: argparse.Namespace) -> Cors | None:
    others = {
        "--allowed-methods": flags.allowed_methods,
        "--allowed-headers": flags.allowed_headers,
        "--allow-credentials": flags.allow_credentials,
    }
    if not flags.allowed_origins:
        given = [name for name, value in others.items() if value]
        if given:
            raise ValueError(f"{given[0]} says what --allowed-origins may do: name some")
        return None
    if flags.allow_credentials and "*" in flags.allowed_origins:
        raise ValueError("--allow-credentials: name the origins that may; --allowed-origins is *")
    return Cors(
        flags.allowed_origins,
        flags.allowed_methods or ANY,
        flags.allowed_headers or ANY,
        flags.allow_credentials,
    )


def _read_tls(flags: argparse.Namespace) -> Tls | None:
    if flags.ssl_certfile is None:
        others = {"--ssl-keyfile": flags.ssl_keyfile, "--ssl-ca-certs": flags.ssl_ca_certs}
        others["--ssl-cert-reqs"] = flags.ssl_cert_reqs
        given = [name for name, value in others.items() if value]
        if given:
            raise ValueError(f"{given[0]} needs --ssl-certfile")
        return None
    if flags.ssl_cert_reqs and flags.ssl_ca_certs is None:
        raise ValueError("--ssl-cert-reqs needs --ssl-ca-certs: who signs those certificates")
    return Tls(flags.ssl_certfile, flags.ssl_keyfile, flags.ssl_ca_certs, flags.ssl_cert_reqs)


def _host(text: str) -> str:
    if text != "*" and not HOST.fullmatch(text):
        expected = "must be a name without a port, such as llm.example.org or *.example.org"
        raise argparse.ArgumentTypeError(f"{expected}; got {text}")
    return text


def _json_list(text: str) -> tuple[str, ...]:
    try:
        entries = parse_value(text)
    except ValueError:
        entries = None
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise argparse.ArgumentTypeError(f'must be a JSON list, such as ["*"]; got {text}')
    return tuple(entries)
