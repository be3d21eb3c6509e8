"""Conversations are asked again, each once, whatever happens meanwhile."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fake_server import Served

from serve.train.cli import main
from serve.train.data import open_records

QUESTIONS = [f"question {number}" for number in range(40)]


class Endpoint(ThreadingHTTPServer):
    """Answers each question with itself; keeps what it was asked, and how much at a time."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict[str, Any]] = []
        self.now = self.most = 0
        self.wanted_together, self.together = 1, threading.Event()
        self.lock = threading.Lock()
        self.fails_after = 10**9
        self.answer: Callable[[str], dict[str, Any]] = lambda text: {"content": f"to {text}"}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def reply(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """The status and the body of an answer."""
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
            if self.most >= self.wanted_together:
                self.together.set()
            self.asked.append(body)
            gone = len(self.asked) > self.fails_after
        assert self.together.wait(20)
        with self.lock:
            self.now -= 1
        if gone:
            return 401, {"error": {"message": "gone"}}
        message = {"role": "assistant", **self.answer(body["messages"][-1]["content"])}
        choice = {"index": 0, "finish_reason": message.pop("finish_reason", "stop")}
        usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
        plain = {"id": "x", "object": "chat.completion", "created": 0, "model": body["model"]}
        return 200, {**plain, "choices": [choice | {"message": message}], "usage": usage}


class Handler(BaseHTTPRequestHandler):
    server: Endpoint  # pyright: ignore[reportIncompatibleVariableOverride]

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._say(200, {"object": "list", "data": [{"id": "served", "object": "model"}]})

    def do_POST(self) -> None:
        self._say(
            *self.server.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        )

    def _say(self, status: int, body: Any) -> None:
        sent = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", f"{len(sent)}")
        self.end_headers()
        self.wfile.write(sent)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return written(tmp_path, [[user(text), assistant("old")] for text in QUESTIONS])


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def written(directory: Path, conversations: list[list[dict[str, Any]]]) -> Path:
    path = directory / "prompts.jsonl"
    path.write_text("".join(json.dumps({"messages": each}) + "\n" for each in conversations))
    return path


def regenerate(data: Path, url: str, *more: str) -> int:
    output = data.parent / "new.jsonl"
    return main(["regenerate", "--data", f"{data}", "--url", url, "--output", f"{output}", *more])


def answered(data: Path) -> dict[int, list[dict[str, Any]]]:
    lines = (data.parent / "new.jsonl").read_text().splitlines()
    found = {line["index"]: line["messages"] for line in map(json.loads, lines)}
    assert len(found) == len(lines)
    return found


def test_every_conversation_is_answered_once_and_so_many_at_a_time(
    endpoint: Endpoint, data: Path
) -> None:
    endpoint.wanted_together = 4
    assert regenerate(data, endpoint.url, "--concurrency", "4", "--seed", "7") == 0
    assert answered(data) == {
        number: [user(text), assistant(f"to {text}")] for number, text in enumerate(QUESTIONS)
    }
    seeds = {body["seed"]: body["messages"][0]["content"] for body in endpoint.asked}
    assert seeds == {7 + number: text for number, text in enumerate(QUESTIONS)}
    assert endpoint.most == 4
    records = open_records(f"{data.parent / 'new.jsonl'}", "train")
    assert len(records) == len(QUESTIONS) and records[0]["messages"][1]["role"] == "assistant"


def test_a_run_that_ended_at_any_byte_goes_on_unless_its_data_changed(
    endpoint: Endpoint, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint.fails_after = 15
    assert regenerate(data, endpoint.url, "--concurrency", "1") == 2
    new = data.parent / "new.jsonl"
    assert len(answered(data)) == 15
    new.write_bytes(new.read_bytes()[:-9])  # killed within a line
    endpoint.fails_after, endpoint.asked = 10**9, []
    assert regenerate(data, endpoint.url) == 2, "without --resume, nothing is touched"
    assert not endpoint.asked
    assert regenerate(data, endpoint.url, "--resume") == 0
    assert sorted(answered(data)) == list(range(40))
    again = Counter(body["messages"][0]["content"] for body in endpoint.asked)
    assert again == Counter(QUESTIONS[14:])
    written(data.parent, [[user("something else"), assistant("old")]] * 40)
    assert regenerate(data, endpoint.url, "--resume") == 2
    assert "begins otherwise than that of --data" in capsys.readouterr().err


def test_later_questions_follow_the_new_answers_and_results_of_old_calls_end_it(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    call = {"id": "f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    endpoint.answer = lambda text: {
        "content": f"to {text}",
        "reasoning_content": "R",
        **({"tool_calls": [call]} if text == "call" else {}),
    }
    result = {"role": "tool", "tool_call_id": "old", "content": "T"}
    old = [user("a"), assistant("x"), user("call"), assistant("y"), result, assistant("z")]
    data = written(tmp_path, [old])
    assert regenerate(data, endpoint.url) == 0
    first, second = assistant("to a", reasoning_content="R"), assistant("to call")
    second |= {"reasoning_content": "R", "tool_calls": [call]}
    assert answered(data) == {0: [user("a"), first, user("call"), second]}
    assert endpoint.asked[1]["messages"] == [user("a"), assistant("to a"), user("call")]


def test_a_last_question_is_answered_and_what_asks_nothing_is_left_out(
    endpoint: Endpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    system = {"role": "system", "content": "S"}
    prompts = [[user("a")], [system, user("b")], [system]]
    data = written(tmp_path, [*prompts, [user("c"), assistant("old"), user("d")]])
    assert regenerate(data, endpoint.url) == 0
    assert answered(data) == {
        0: [user("a"), assistant("to a")],
        1: [system, user("b"), assistant("to b")],
        3: [user("c"), assistant("to c"), user("d"), assistant("to d")],
    }
    assert "1 left out: it asks nothing" in capsys.readouterr().out


def test_cut_off_answers_are_left_out_and_not_asked_for_again(
    endpoint: Endpoint, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint.answer = lambda text: {
        "content": "to",
        "finish_reason": "length" if text.endswith("7") else "stop",
    }
    assert regenerate(data, endpoint.url) == 0
    assert len(answered(data)) == 36
    assert "4 left out: an answer was cut off by the limit of tokens" in capsys.readouterr().out
    endpoint.asked = []
    assert regenerate(data, endpoint.url, "--resume") == 0
    assert not endpoint.asked


def test_our_own_server_answers(say: Callable[..., Served], tmp_path: Path) -> None:
    served = say("Hello.")
    data = written(tmp_path, [[user("a"), assistant("old")]])
    assert regenerate(data, f"{served.http.base_url}/v1") == 0
    assert answered(data) == {0: [user("a"), assistant("Hello.")]}
