"""Accept length on questions about pictures: MMStar's layout, and how answers are judged."""

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, Image
from seeing import seeing

from eagle3_jax import SamplingParams
from eagle3_tools.bench.acceptance.answerers import ServerAnswerer, measure_tasks
from eagle3_tools.bench.acceptance.picture_terms import count_pictures
from eagle3_tools.bench.acceptance.tasks import is_right, read_tasks
from eagle3_tools.bench.load.http_client import Address
from eagle3_tools.make_demo.pictures.questions import FILE, write_questions

QUESTION = "Which colour is the cat?\nOptions: A: red, B: black, C: blue, D: green"


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    write_questions(tmp_path, 4)
    return tmp_path


def lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / FILE).read_text().splitlines()]


def test_lines_with_files_and_rows_with_bytes_are_the_same_tasks(
    pictures: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows = lines(pictures)
    for row in rows:
        row["image"] = {"bytes": (pictures / row["image"]).read_bytes(), "path": None}
    released = tmp_path_factory.mktemp("released")
    Dataset.from_list(rows).cast_column("image", Image()).to_parquet(released / "val.parquet")
    tasks = read_tasks(pictures)
    assert read_tasks(released) == tasks
    assert count_pictures(tasks) == 4 == count_pictures(read_tasks(pictures, 1))
    shown, asked = tasks[0].messages[0]["content"]
    assert shown["image_url"]["url"].startswith("data:image/png;base64,")
    assert (asked["text"], tasks[0].expected) == (rows[0]["question"], rows[0]["answer"])


def test_without_its_options_a_question_is_not_judged(pictures: Path) -> None:
    entry = {"image": "images/0000.png", "question": QUESTION, "answer": "B"}
    (pictures / FILE).write_text(json.dumps(entry))
    (whole,), (cut,) = read_tasks(pictures), read_tasks(pictures, drop_options=True)
    texts = [task.messages[0]["content"][1]["text"] for task in (whole, cut)]
    assert texts == [QUESTION, "Which colour is the cat?"]
    assert (whole.expected, cut.expected) == ("B", None)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"image": "images/none.png", "question": "?", "answer": "A"}, "No such file"),
        ({"image": "../x.png", "question": "?", "answer": "A"}, "must be a path below"),
        ({"image": 7, "question": "?", "answer": "A"}, "must be the path of a file"),
        ({"image": FILE, "question": "?", "answer": "A"}, "expected an image"),
        ({"image": "images/0000.png", "answer": "A"}, "needs a `question`"),
        ({"image": "images/0000.png", "question": "?", "answer": 1}, "made of text"),
    ],
)
def test_a_bad_line_is_named(entry: dict[str, Any], reason: str, pictures: Path) -> None:
    (pictures / FILE).write_text(json.dumps(entry))
    with pytest.raises(ValueError, match=rf"{FILE}:1: ") as error:
        read_tasks(pictures)
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("text", "expected", "right"),
    [
        ("B", "B", True),
        ("(B) two cats", "B", True),
        ("**B**", "B", True),
        ("B. A cat.", "B", True),
        ("A cat is on the mat, so the answer is B.", "B", True),
        ("Perhaps A.</think>The answer: (C)", "C", True),
        ("Not option A but option D", "D", True),
        (r"It is \boxed{\text{A}}", "A", True),
        ("A cat", "A", False),
        ("It could be (A) or (B)", "A", False),
        ("I can't say", "A", False),
        ("there are  2 red\ncircles", "There are 2 red circles.", True),
        ("There are 3 red circles.", "There are 2 red circles.", False),
    ],
)
def test_a_choice_is_read_as_it_is_stated(text: str, expected: str, right: bool) -> None:
    assert is_right(text, expected) is right


def test_a_server_is_shown_the_pictures_and_judged(
    pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = lines(pictures)
    rows[1]["answer"] = "yes"
    (pictures / FILE).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    monkeypatch.setattr("eagle3_tools.bench.load.counters.read_counts", lambda _: {})
    with seeing() as server:
        address = Address.of(f"{server.http.base_url}")
        sampling = SamplingParams(temperature=0.0, max_tokens=8, seed=0)
        answerer = ServerAnswerer(address, "fake", sampling, concurrency=2)
        found = measure_tasks(answerer, read_tasks(pictures))
        shown = [len(request.images) for request in server.engine.asked]
    assert shown == [1, 1, 1, 1]
    assert [row.right for row in found] == [0, 1, 0, 0, 0.25]
