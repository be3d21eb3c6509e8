"""The short form of `make prove-server`, and what a request can't make the server do."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_server import Served
from fuzz_requests import GOOD, requests
from fuzz_server import fuzz, leftovers

pytestmark = pytest.mark.xdist_group("served pair")

opened: list[str] | None = None


def note_opened(event: str, args: tuple[Any, ...]) -> None:
    if opened is not None and event in ("open", "os.listdir", "os.scandir", "shutil.copyfile"):
        opened.append(str(args[0]))


@contextmanager
def noting_opened() -> Iterator[list[str]]:
    """The paths that are opened within the block, anywhere in this process."""
    global opened
    opened = []
    try:
        yield opened
    finally:
        opened = None


def test_nothing_that_a_client_sends_is_a_server_error_or_keeps_a_page(server: Served) -> None:
    openapi = server.http.get("/openapi.json").json()
    report = fuzz(server.http.base_url, requests(openapi, seed=1), 250)
    assert not report.failures
    assert report.statuses["200"] > 25 and report.statuses["400"] > 40, report.statuses
    assert server.http.get("/health").status_code == 200
    assert not leftovers(server.http)


def test_a_file_named_in_any_field_is_not_read(server: Served, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("do not tell")
    names = (str(secret), secret.as_uri(), f"../../../../../..{secret}")
    openapi = server.http.get("/openapi.json").json()
    sys.addaudithook(note_opened)
    with noting_opened() as paths:
        secret.read_text()
        assert str(secret) in paths
        paths.clear()
        answers = [server.http.post(path, json=body) for path, body in naming_files(openapi, names)]
    assert len(answers) > 200 and {answer.status_code for answer in answers} >= {200, 400}
    assert not [path for path in paths if "secret" in path]
    assert not any("do not tell" in answer.text for answer in answers)


def naming_files(
    openapi: dict[str, Any], names: tuple[str, ...]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """A good body of each endpoint with one field of it, after the other, that names a file."""
    for path, good in GOOD.items():
        reference = openapi["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        schema = openapi["components"]["schemas"][reference["schema"]["$ref"].rpartition("/")[2]]
        for field in {*schema["properties"], "image_url", "file", "chat_template"}:
            for value in (*names, [names[0]], dict.fromkeys(("url", "$ref", "path"), names[1])):
                yield path, {**good, field: value}
    for name in names:
        part = {"type": "image_url", "image_url": {"url": name}}
        yield "/v1/chat/completions", {"messages": [{"role": "user", "content": [part]}]}
        schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": name}}}
        yield "/v1/completions", {"prompt": "a", "max_tokens": 2, "response_format": schema}
