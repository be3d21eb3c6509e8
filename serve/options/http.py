"""Options of the server on the web: CORS, a path prefix, TLS."""

import argparse
import re
from dataclasses import dataclass
from pathlib import Path

from convert.command_line.options import flags_of, option, values_of
from convert.files.json_object import parse_value

ANY = ("*",)
HOST = re.compile(r"(\*\.)?[\w-]+(\.[\w-]+)*|[0-9a-fA-F:.]+")


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


@dataclass(frozen=True)
class Cors:
    """Permissions of pages of other origins, under the names of Starlette's CORSMiddleware."""

    allow_origins: tuple[str, ...] = option(
        "--allowed-origins JSON",
        'origins whose pages may send requests, ["https://a.org"] or ["*"]',
        _json_list,
        default=(),
    )
    allow_methods: tuple[str, ...] = option(
        "--allowed-methods JSON", "their methods; default: all", _json_list, default=ANY, unset=True
    )
    allow_headers: tuple[str, ...] = option(
        "--allowed-headers JSON", "their headers; default: all", _json_list, default=ANY, unset=True
    )
    allow_credentials: bool = option(
        "--allow-credentials",
        "let these requests carry cookies and client certificates; not with the origin *",
    )


@dataclass(frozen=True)
class Tls:
    """TLS files in PEM form.

    `certfile` may hold the key too. `ca_certs` and `cert_reqs` (as ssl.VerifyMode) verify clients.
    """

    certfile: Path | None = option(
        "--ssl-certfile FILE", "serve HTTPS with this certificate (PEM)", Path
    )
    keyfile: Path | None = option(
        "--ssl-keyfile FILE", "the certificate's private key, if its file has none", Path
    )
    ca_certs: Path | None = option(
        "--ssl-ca-certs FILE", "authorities that sign clients' certificates", Path
    )
    cert_reqs: int = option(
        "--ssl-cert-reqs",
        "clients' certificates: 0 not requested, 1 optional, 2 required",
        int,
        default=0,
        choices=(0, 1, 2),
    )


@dataclass(frozen=True)
class HttpOptions:
    """Values of the web flags.

    `cors` None lets pages of other origins read nothing. `root_path` has no final slash.
    `checks_hosts` refuses requests for names not in `allowed_hosts`.
    """

    cors: Cors | None = None
    root_path: str = option(
        "--root-path PATH", "prefix that a proxy in front removes, such as /llm", default=""
    )
    tls: Tls | None = None
    allowed_hosts: tuple[str, ...] = option(
        "--allowed-hosts NAME",
        "names that requests may be for, besides localhost and the server's addresses: "
        "llm.example.org, *.example.org or * for any; without an API key on a loopback address "
        "others are refused",
        _host,
        default=(),
        nargs="+",
    )
    checks_hosts: bool = False


TABLES = (Cors, HttpOptions, Tls)


def read_http_options(flags: argparse.Namespace) -> HttpOptions:
    """Read the tables; ValueError, naming the flag, for invalid or ineffective values."""
    given = values_of(HttpOptions, flags)
    path = given.pop("root_path").rstrip("/")
    if path and not path.startswith("/"):
        raise ValueError(f"--root-path must begin with a slash; got {flags.root_path!r}")
    return HttpOptions(_read_cors(flags), path, _read_tls(flags), **given)


def _read_cors(flags: argparse.Namespace) -> Cors | None:
    given = values_of(Cors, flags)
    cors = Cors(**{name: value for name, value in given.items() if value})  # []: the default
    if not cors.allow_origins:
        _require_nothing(Cors, flags, "--allowed-origins")
        return None
    if cors.allow_credentials and "*" in cors.allow_origins:
        raise ValueError("--allow-credentials needs named origins: --allowed-origins must not be *")
    return cors


def _read_tls(flags: argparse.Namespace) -> Tls | None:
    tls = Tls(**values_of(Tls, flags))
    if tls.certfile is None:
        _require_nothing(Tls, flags, "--ssl-certfile")
        return None
    if tls.cert_reqs and tls.ca_certs is None:
        raise ValueError(
            "--ssl-cert-reqs needs --ssl-ca-certs, the authorities of clients' certificates"
        )
    return tls


def _require_nothing(table: type, flags: argparse.Namespace, needed: str) -> None:
    """Raise ValueError for an option of a table that has no effect without the option `needed`."""
    for name, flag in flags_of(table).items():
        if getattr(flags, name):
            raise ValueError(f"{flag} needs {needed}")
