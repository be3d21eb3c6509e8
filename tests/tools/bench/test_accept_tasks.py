"""Accept length on tasks of one's own, of an engine and of a server."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from fake_server import Served

from eagle3_jax import SamplingParams
from eagle3_tools.bench.acceptance.answerers import (
    OVERALL,
    EngineAnswerer,
    PromptMaker,
    ServerAnswerer,
    measure_tasks,
)
from eagle3_tools.bench.acceptance.tasks import Task, read_tasks
from eagle3_tools.bench.cli import main
from eagle3_tools.bench.common.accept_length import AcceptRow
from eagle3_tools.bench.load.http_client import Address
from serve.images.reader import NoImages

SAMPLING = SamplingParams(temperature=0.0, max_tokens=8, seed=0)


def said(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def written(directory: Path, **files: list[Any]) -> Path:
    for name, entries in files.items():
        text = "\n".join(json.dumps(entry) for entry in entries)
        (directory / f"{name}.jsonl").write_text(text + "\n\n")
    return directory


def test_question_lists_are_read_in_their_usual_forms(tmp_path: Path) -> None:
    answered = [said("d"), {"role": "assistant", "content": "no"}]
    directory = written(
        tmp_path,
        gsm8k=[{"question": "a", "answer": "1"}, {"prompt": "b"}],
        math500=[{"problem": "c", "solution": "2"}],
        mtbench=[{"question_id": 81, "category": "writing", "turns": ["e", "f"]}],
        chats=[{"messages": answered, "category": "writing", "tools": [{"type": "function"}]}],
    )
    assert read_tasks(directory) == [
        Task("writing", (said("d"),), tools=({"type": "function"},)),
        Task("writing", (said("e"),), ("f",)),
        Task("gsm8k", (said("a"),)),
        Task("gsm8k", (said("b"),)),
        Task("math500", (said("c"),)),
    ]
    assert [task.messages for task in read_tasks(directory, 1)][1:] == [(said("a"),), (said("c"),)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "is not JSON"),
        ("[1]", "must be an object"),
        ('{"text": "x"}', "needs `prompt`, `turns` or `messages`"),
        ('{"turns": [1]}', "made of text"),
        ('{"messages": [{"role": "system", "content": "x"}]}', "has none of a user"),
    ],
)
def test_a_bad_line_is_named(line: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"prompt": "fine"}\n' + line)
    with pytest.raises(ValueError, match=r"x\.jsonl:2") as error:
        read_tasks(tmp_path)
    assert reason in str(error.value)


def test_a_directory_without_tasks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no \.jsonl or \.parquet"):
        read_tasks(tmp_path)
    (tmp_path / "x.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="are empty"):
        read_tasks(tmp_path)


TASKS = [Task("a", (said("one"),), ("two",)), Task("b", (said("three"),)), Task("a", (said("x"),))]


def check(rows: list[AcceptRow]) -> None:
    """Three tasks of four answers, eight tokens each, in rounds of two tokens: one accepted."""
    assert [row.category for row in rows] == ["a", "b", OVERALL]
    assert [(row.prompts, row.tokens) for row in rows] == [(2, 24), (1, 8), (3, 32)]
    assert {row.accept_length for row in rows} == {2}
    assert all(math.isnan(row.right) for row in rows)


def at(served: Served) -> ServerAnswerer:
    return ServerAnswerer(Address.of(f"{served.http.base_url}"), "fake", SAMPLING, concurrency=2)


def test_a_server_s_acceptance_is_read_from_its_metrics(fake: Served) -> None:
    rows = measure_tasks(at(fake), TASKS)
    check(rows)
    assert rows[-1].per_position == (1, 0, 0) and rows[-1].histogram == (0, 16, 0, 0)
    assert 0 < rows[-1].distinct_bigrams <= 1


def test_without_metrics_its_responses_tell(fake: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagle3_tools.bench.load.counters.read_counts", lambda _: {})
    rows = measure_tasks(at(fake), TASKS)
    check(rows)
    assert rows[-1].per_position == () and rows[-1].histogram == ()


def test_a_second_turn_stands_behind_the_first_answer(serve: Any) -> None:
    served = serve(FakeEngine())
    seen: list[list[int]] = []
    add = served.engine.add

    def note(request: Any) -> None:
        seen.append(request.prompt_ids)
        add(request)

    served.engine.add = note
    measure_tasks(at(served), TASKS[:1])
    texts = [bytes(ids).decode() for ids in seen]
    assert texts[0] == "one"
    first, answer, last = texts[1].split("\n")
    assert (first, last) == ("one", "two") and len(answer) == 8


def test_a_server_with_synthetic_acceptance_is_refused(serve: Any) -> None:
    served = serve(FakeEngine(synthetic_acceptance_length=2.88))
    with pytest.raises(ValueError, match="synthetic acceptance: the answers are not the model's"):
        measure_tasks(at(served), TASKS)


def test_a_request_that_fails_ends_the_benchmark(fake: Served) -> None:
    with pytest.raises(OSError, match="answered 400"):
        measure_tasks(at(fake), [Task("a", (said("no!"),))])


class Plain:
    """A tokenizer whose chats are their contents."""

    def encode_chat(self, messages: Any, tools: Any = None) -> list[int]:
        return list("\n".join(message["content"] for message in messages).encode())


def test_an_engine_here_answers_the_same_tasks() -> None:
    make_prompt = PromptMaker(Plain(), NoImages())  # pyright: ignore[reportArgumentType]
    side = EngineAnswerer(FakeEngine(), make_prompt, SAMPLING, 64)
    check(measure_tasks(side, TASKS))
    with pytest.raises(ValueError, match="leaves no room"):
        measure_tasks(side, [Task("a", (said("long" * 16),))])


def test_a_running_server_is_measured_by_one_command(
    fake: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, facts=[{"prompt": "one"}, {"prompt": "two"}])
    record = tmp_path / "record.json"
    url = ["--url", f"{fake.http.base_url}", "--data", f"{tmp_path}", "--max-tokens", "8"]
    assert main(["accept", *url, "--json", f"{record}"]) == 0
    shown = capsys.readouterr().out
    assert "facts" in shown and "2.00" in shown
    read = json.loads(record.read_text())
    assert read["rows"][0]["right"] is None and read["rows"][0]["tokens"] == 16
