"""Options that this release has not are refused by name; docs/request-options.md lists them."""

import json
from typing import Any

import pytest
from fake_server import Served

from docs.generator import ROOT
from serve.openai.unsupported import CHAT, COMPLETION, INSTEAD
from serve.sglang.protocol import NEUTRAL, NEUTRAL_SAMPLING

BODIES: dict[str, tuple[str, dict[str, Any], dict[str, tuple[object, ...]]]] = {
    "completions": ("/v1/completions", {"prompt": "abc", "max_tokens": 1}, COMPLETION),
    "chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 1},
        CHAT,
    ),
    "/generate": ("/generate", {"text": "abc", "sampling_params": {"max_new_tokens": 1}}, NEUTRAL),
}
PLACES = {place: neutral for place, (_, _, neutral) in BODIES.items()} | {
    "sampling_params": NEUTRAL_SAMPLING
}


def rows() -> list[str]:
    """The lines of the table, an option each; null passes always and is left out."""
    passes: dict[str, dict[str, str]] = {}
    for place, neutral in PLACES.items():
        for name, values in neutral.items():
            sets = ", ".join(f"`{json.dumps(v)}`" for v in values if v is not None)
            passes.setdefault(name, {})[place] = sets
    for sets in passes.values():
        assert len(set(sets.values())) == 1, sets
    return [
        f"| `{name}` | {', '.join(sets)} | {next(iter(sets.values()))} | {INSTEAD.get(name, '')} |"
        for name, sets in passes.items()
    ]


def test_the_docs_list_every_refused_option() -> None:
    text = (ROOT / "docs/request-options.md").read_text(encoding="utf-8")
    section = text.partition("## Refused by name")[2].partition("\n## ")[0]
    assert [line for line in section.splitlines() if line.startswith("| `")] == rows()
    assert set(INSTEAD) <= {name for neutral in PLACES.values() for name in neutral}


@pytest.mark.parametrize("place", BODIES)
def test_neutral_values_pass_and_others_are_refused_by_name(fake: Served, place: str) -> None:
    path, body, neutral = BODIES[place]
    for name, values in neutral.items():
        error = fake.http.post(path, json=body | {name: "unheard of"}).json()["error"]
        assert (error["param"], error["code"]) == (name, "unsupported_option")
        assert INSTEAD.get(name, "leave it out") in error["message"]
        for value in values:
            assert fake.http.post(path, json=body | {name: value}).status_code == 200, name


@pytest.mark.parametrize("value", [1, -1, "high"])
def test_a_priority_other_than_the_default_is_refused(fake: Served, value: object) -> None:
    for path, body, _ in BODIES.values():
        assert fake.http.post(path, json=body | {"priority": value}).status_code == 400
