"""The walk's lines: failures do not end it, and differences that no tie explains are errors."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagle3_tools.walk import __main__ as walk
from eagle3_tools.walk.answers import Answer, Found, differences
from eagle3_tools.walk.parts import PARTS, SERVERS, Part
from eagle3_tools.walk.place import Place

ANSWER = Answer("a", [1, 2], [3, 4, 5], accepted=6)


def no_scorer(target: Path) -> Any:
    raise AssertionError(f"{target} was loaded to explain what needs no explanation")


FACTS = {"text": "a", "loss": 2.0}


@pytest.mark.parametrize(
    ("found", "is_error"),
    [
        (Found([replace(ANSWER, tokens=[3, 4, 6])], FACTS), True),
        (Found([replace(ANSWER, tokens=[3, 4])], FACTS), True),
        (Found([replace(ANSWER, prompt=[1, 3])], FACTS), True),
        (Found([replace(ANSWER, accepted=3)], FACTS), True),
        (Found([replace(ANSWER, accepted=5)], FACTS), False),
        (Found([], FACTS), True),
        (Found([ANSWER], FACTS | {"text": "b"}), True),
        (Found([ANSWER], FACTS | {"loss": 2.1}), True),
        (Found([ANSWER], FACTS | {"loss": 2.01}), False),
    ],
)
def test_tokens_drafts_and_facts_are_compared(found: Found, is_error: bool) -> None:
    _, errors = differences(found, Found([ANSWER], FACTS).as_json(), no_scorer)
    assert bool(errors) == is_error


def test_a_failed_part_gives_a_line_and_the_next_one_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A server that ends at its start fails each of its parts; a part at its limit fails alone."""

    def slow(place: Place) -> Found:
        return Found(facts={"left": place.left_s})

    parts = [
        *(Part(name, slow, "text") for name in ("first", "second")),
        Part("late", lambda place: slow(replace(place, limit_s=0.0))),
        Part("good", lambda _: Found([ANSWER])),
        Part("apart", lambda _: Found([ANSWER]), devices=4),
    ]
    monkeypatch.setattr(walk, "PARTS", parts)
    monkeypatch.setitem(SERVERS, "text", ("--no-such-flag",))
    record = tmp_path / "record.jsonl"
    assert walk.main(["--record", str(record)]) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["part"] for line in lines] == ["first", "second", "late", "good"]
    assert [line["holds"] for line in lines] == [False, False, False, True]
    assert "no-such-flag" in lines[0]["reason"] and "limit" not in lines[0]["reason"]
    assert "longer than 0 s" in lines[2]["reason"]
    monkeypatch.setattr(walk, "PARTS", [Part("good", lambda _: Found([ANSWER]))])
    assert walk.main(["--expect", str(record)]) == 0
    other = replace(ANSWER, tokens=[3, 4, 6])
    monkeypatch.setattr(walk, "PARTS", [Part("good", lambda _: Found([other]))])
    assert walk.main(["--expect", str(record)]) == 1


def test_every_part_with_a_server_names_one_and_parts_of_one_server_are_neighbours() -> None:
    servers = [part.server for part in PARTS if part.server]
    assert set(servers) == set(SERVERS)
    assert servers == sorted(servers, key=list(SERVERS).index)
    assert len({part.name for part in PARTS}) == len(PARTS)
