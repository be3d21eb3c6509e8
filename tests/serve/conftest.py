"""Servers over the fake engine."""

import os
import shutil
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest
from called_tools import saying
from fake_engine import FakeEngine
from fake_server import Serve, Served, served_by
from served_fixtures import fake, pair, serve, target_directory

from eagle3_jax.engine import Request
from eagle3_tools.bench.load.server_process import serving
from serve.pair.loading import LoadedPair, build_engine

__all__ = ["fake", "pair", "serve", "target_directory"]

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture
def say(serve: Serve) -> Serve:
    def start(*texts: str, chat_format: str = "kimi_k2", **options: Any) -> Served:
        engine = saying(*texts, chat_format=chat_format)
        if model := options.get("model"):
            engine.max_model_len = model.max_model_len
        return serve(engine, **{"tokenizer": engine.tokenizer, **options})

    return start


@pytest.fixture
def mistake(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Read a command line, which must end with status 2 and one line; return the line."""

    def told(read: Callable[..., object], *argv: str, **fields: object) -> str:
        with pytest.raises(SystemExit, match="2"):
            read(*argv, **fields)
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        return error

    return told


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    requests: list[Request] = []
    add = FakeEngine.add

    def listen(self: FakeEngine, request: Request) -> None:
        requests.append(request)
        add(self, request)

    monkeypatch.setattr(FakeEngine, "add", listen)
    return requests


@pytest.fixture(scope="session")
def server(pair: LoadedPair) -> Iterator[Served]:
    """A server over that pair, with k = 3."""
    sizes = {"max_num_seqs": 2, "batch_buckets": (2,), "max_model_len": 256}
    engine = build_engine(pair, num_speculative_tokens=3, **sizes)
    with served_by(engine, pair.tokenizer, grammars=engine.grammars) as running:
        yield running


@pytest.fixture(scope="session")
def chromium(request: pytest.FixtureRequest) -> Iterator[Any]:
    if not request.config.getoption("--browser"):
        pytest.skip("run by make page-check")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed")
    with import_module("playwright.sync_api").sync_playwright() as playwright:
        # Chromium's own sandbox doesn't work for root, as which containers run tests.
        sandbox = os.geteuid() != 0
        browser = playwright.chromium.launch(executable_path=path, chromium_sandbox=sandbox)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def demo(chromium: Any) -> Iterator[str]:
    with serving(["--demo"]) as (_, url):
        yield url


@pytest.fixture
def page(chromium: Any, demo: str) -> Iterator[Any]:
    """The page, ready; it may not complain, nor ask for anything from elsewhere."""
    page = chromium.new_page(viewport={"width": 1180, "height": 800})
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console", lambda m: complaints.append(m.text) if "Content Security" in m.text else None
    )
    page.on("request", lambda r: r.url.startswith(demo) or complaints.append(r.url))
    page.goto(demo)
    page.wait_for_selector("#state[data-state=ready]")
    page.fill("#temperature", "0")
    yield page
    page.close()
    assert not complaints
