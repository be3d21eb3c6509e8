"""docs/server.md names every route and every flag, and none that there is not."""

import re

from fake_engine import FakeEngine
from fake_server import build_service

from docs.generator import ROOT
from docs.generator.parsers import parser_of
from serve.app import create_app

TEXT = (ROOT / "docs/server.md").read_text(encoding="utf-8")
QUOTED = re.findall(r"`([^`]+)`", TEXT)


def test_every_route_is_in_the_table_and_no_other() -> None:
    routes = {path for path in create_app(build_service(FakeEngine())).openapi()["paths"]}
    table = TEXT.partition("## Endpoints")[2].partition("## Flags")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    named = {path for row in rows for path in re.findall(r"(/[\w./{}]*)[`]", row.split("|")[1])}
    assert routes <= named
    hidden = {"/", "/page/{name}", "/docs", "/redoc", "/openapi.json", "/docs/oauth2-redirect"}
    assert named - routes <= hidden


def test_every_flag_is_named_and_no_other() -> None:
    flags = parser_of("serve.cli:main")._option_string_actions
    named = {name for text in QUOTED for name in re.findall(r"(?<![\w-])--?[a-z][\w-]*", text)}
    missing = sorted(set(flags) - named)
    assert not missing
    assert {n for n in named if n.replace("_", "-") not in flags} == set()
