"""A hub of directories on this machine: the few endpoints that huggingface_hub's downloads use."""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any
from urllib.parse import unquote

import pytest
from huggingface_hub import constants

API = re.compile(r"/api/models/(?P<id>[^/]+/[^/]+)/(?P<what>revision|tree)/(?P<rest>[^/?]+)")
PIECE = 10_000
STORED = re.compile(r"/stored/(?P<id>[^/]+/[^/]+)/(?P<rest>[^/]+)/(?P<file>[^?]+)")
FILE = re.compile(r"/(?P<id>[^/]+/[^/]+)/resolve/(?P<rest>[^/]+)/(?P<file>[^?]+)")


@dataclass
class LocalHub:
    """Repositories by id: the directory of each revision.

    gated: ids that need the token. lfs: files that lie elsewhere, as large ones do: their address
    answers with another, which takes no token. slow: files that take seconds. served: (method,
    file, Range) of every request for a file.
    """

    repositories: dict[str, dict[str, Path]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    token: str = "hf_let_me_in"
    lfs: set[str] = field(default_factory=set)
    slow: set[str] = field(default_factory=set)
    served: list[tuple[str, str, str | None]] = field(default_factory=list)
    endpoint: str = ""

    def add(self, name: str, directory: Path, revision: str = "main") -> None:
        self.repositories.setdefault(name, {})[revision] = directory

    def commit(self, name: str, revision: str) -> tuple[str, Path] | None:
        """A revision's commit, of its name and directory, and its files."""
        for branch, directory in self.repositories[name].items():
            commit = hashlib.sha1(f"{name} {branch}".encode()).hexdigest()
            if revision in (branch, commit):
                return commit, directory
        return None

    def downloaded(self) -> list[str]:
        return sorted({file for method, file, _ in self.served if method == "GET"})


@contextmanager
def local_hub(cache: Path) -> Iterator[LocalHub]:
    """A hub in the place of huggingface.co, and a cache of its own, in this process."""
    before, files = constants.ENDPOINT, constants.HUGGINGFACE_CO_URL_TEMPLATE
    with pytest.MonkeyPatch.context() as patch, _answering() as hub:
        patch.setattr(constants, "ENDPOINT", hub.endpoint)
        here = files.replace(before, hub.endpoint)
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", here)
        patch.setattr(constants, "HF_HUB_CACHE", str(cache))
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        patch.delenv("HF_TOKEN", raising=False)
        yield hub


@contextmanager
def _answering() -> Iterator[LocalHub]:
    """A hub that answers at its endpoint."""
    hub = LocalHub()

    class Handler(_Handler):
        of = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    of: LocalHub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = unquote(self.path)
        found = API.match(path) or STORED.match(path) or FILE.match(path)
        if found is None:
            return self._refuse(404, "EntryNotFound")
        name, parts = found["id"], found.groupdict()
        if name not in self.of.repositories:
            return self._refuse(404, "RepoNotFound")
        allowed = self.headers["Authorization"] == f"Bearer {self.of.token}"
        stored = found.re is STORED
        if name in self.of.gated and not (allowed or stored):
            return self._refuse(403, "GatedRepo")
        at = self.of.commit(name, parts["rest"])
        if at is None:
            return self._refuse(404, "RevisionNotFound")
        if parts.get("what") == "revision":
            self._json({"id": name, "modelId": name, "sha": at[0], "siblings": []})
        elif parts.get("what") == "tree":
            self._json(list(_tree(at[1], self.of.lfs)))
        elif parts["file"] in self.of.lfs and not stored:
            self._elsewhere(name, *at, parts["file"])
        else:
            self._file(*at, parts["file"])

    do_HEAD = do_GET

    def _file(self, commit: str, directory: Path, name: str) -> None:
        content, asked = (directory / name).read_bytes(), self.headers["Range"]
        self.of.served.append((self.command, name, asked))
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(content) - start))
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("ETag", f'"{_digest(directory / name)}"')
        self.send_header("X-Repo-Commit", commit)
        self.end_headers()
        if self.command == "GET":
            with suppress(OSError):  # The client may have gone.
                for first in range(start, len(content), PIECE):
                    self.wfile.write(content[first : first + PIECE])
                    sleep(0.1 if name in self.of.slow else 0)

    def _elsewhere(self, name: str, commit: str, directory: Path, file: str) -> None:
        content = (directory / file).read_bytes()
        # Another host's name, or the client would take it for a file that was renamed.
        elsewhere = self.of.endpoint.replace("127.0.0.1", "localhost")
        self.send_response(302)
        self.send_header("Location", f"{elsewhere}/stored/{name}/{commit}/{file}")
        self.send_header("X-Linked-Size", str(len(content)))
        self.send_header("X-Linked-ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", commit)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _json(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


def _tree(directory: Path, lfs: set[str]) -> Iterator[dict[str, Any]]:
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            name, size = str(path.relative_to(directory)), path.stat().st_size
            entry = {"type": "file", "path": name, "size": size, "oid": _digest(path)}
            pointer = {"oid": hashlib.sha256(path.read_bytes()).hexdigest(), "size": size}
            yield entry | ({"lfs": pointer | {"pointerSize": 134}} if name in lfs else {})


@cache
def _digest(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()
