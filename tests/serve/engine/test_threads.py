"""Work in threads: whatever it raises, its request is answered."""

import ast
import asyncio
import gc
import threading
import weakref
from pathlib import Path

import pytest
from chat_tokenizers import kimi
from fake_engine import CharTokenizer, FakeEngine

import serve as serve_package
from serve.engine.threads import Threads, in_thread

SERVE = Path(serve_package.__file__).parent
AROUND = {"to_thread", "run_in_executor", "run_in_threadpool", "ThreadPoolExecutor", "run_sync"}


def raising(error: BaseException) -> None:
    raise error


async def within_a_second(work) -> None:
    await asyncio.wait_for(in_thread(work), 1.0)


@pytest.mark.parametrize(
    "raised",
    [
        *(StopIteration(1), StopAsyncIteration(), GeneratorExit(), KeyboardInterrupt()),
        *(SystemExit(3), asyncio.CancelledError(), BaseException("odd")),
        *(MemoryError(), ValueError("plain")),
    ],
    ids=repr,
)
def test_whatever_work_raises_is_raised_where_it_is_awaited(raised: BaseException) -> None:
    plain = isinstance(raised, Exception) and not isinstance(raised, StopIteration)
    with pytest.raises(type(raised) if plain else RuntimeError) as caught:
        asyncio.run(within_a_second(lambda: raising(raised)))
    assert caught.value is raised or caught.value.__cause__ is raised


def test_a_chat_whose_work_raises_stop_iteration_is_answered(serve) -> None:
    class Unlucky(CharTokenizer):
        def encode_chat(self, messages, most=None, /, **kwargs):
            return next(iter(()))

    server = serve(FakeEngine(), tokenizer=Unlucky())
    body = {"messages": [{"role": "user", "content": "a" * 30_000}]}
    answer = server.http.post("/v1/chat/completions", json=body, timeout=5)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"


def test_all_private_use_characters_are_a_chat_like_any(serve) -> None:
    server = serve(FakeEngine(), tokenizer=kimi())
    every = "".join(map(chr, range(0xF0000, 0xFFFFE)))
    body = {"messages": [{"role": "user", "content": every}], "max_tokens": 1}
    answer = server.http.post("/v1/chat/completions", json=body, timeout=10)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_work_that_nobody_waits_for_any_more_is_not_begun() -> None:
    async def cancel_the_second() -> list[str]:
        threads, done, go = Threads("few", 1), [], threading.Event()
        first = asyncio.create_task(threads.run(go.wait))
        second = asyncio.create_task(threads.run(lambda: done.append("second")))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.sleep(0)
        go.set()
        await first
        await threads.run(lambda: done.append("third"))
        return done

    assert asyncio.run(cancel_the_second()) == ["third"]


def test_an_idle_thread_holds_nothing_of_what_it_did() -> None:
    """The clients that hung up must not leave their texts behind."""

    class Text(str):
        pass

    async def leave() -> weakref.ref[Text]:
        text = Text("long")
        reference = weakref.ref(text)
        await in_thread(lambda text=text: len(text))
        return reference

    reference = asyncio.run(leave())
    gc.collect()
    assert reference() is None


def test_everything_in_a_thread_goes_through_one_place() -> None:
    found = []
    for path in SERVE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(node, "attr", getattr(node, "id", getattr(node, "name", None)))
            if isinstance(name, str) and name in AROUND:
                found.append(f"{path}: {name}")
    assert not found
