"""Every shell line of docs/guide runs here as the page shows it, or has a reason why it cannot."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

ROOT = Path(__file__).parents[1]
PAGES = {path.name: path for path in sorted((ROOT / "docs/guide").glob("*.md"))}
CANNOT_RUN = {
    "/models/": "needs a published checkpoint",
    "amd/Kimi": "needs a published checkpoint and the hub",
    "MODEL": "stands for the reader's own checkpoint",
    "--json doctor.json": "examines a GPU",
    "git clone": "needs the address of the repository",
    "regenerate --data": "asks the server of a published checkpoint",
    "-m venv": "`make dist-check` does it",
    "pip install": "`make dist-check` installs the wheels",
    "runs/vision": "takes half an hour",
    "accept length >": "is a formula",
}
"""Texts of lines that cannot run here."""
SHOWN = {
    'eagle3-generate --demo --prompt "What is 95 + 61?" --num': "Answer: 156",
    "grep spec_decode": "vllm:spec_decode_num_drafts_total",
}
"""Texts of lines, and what the page says that they print."""
QUESTION = {"role": "user", "content": "What is 95 + 61?"}
CHAT = {"messages": [QUESTION, {"role": "assistant", "content": "95 + 61 = 156\n\nAnswer: 156"}]}
INPUTS = {
    "prompts.jsonl": f"{json.dumps({'prompt': QUESTION['content']})}\n",
    "conversations.jsonl": f"{json.dumps(CHAT)}\n" * 8,
}
"""Files that a page tells its reader to have."""
LIMIT_S = 1800


def commands(page: Path) -> Iterator[str]:
    """Yield the commands of the indented blocks; one may span lines by a backslash or a quote."""
    begun = ""
    for line in re.findall(r"^    +(\S.*)", page.read_text(encoding="utf-8"), re.M):
        begun = f"{begun}\n{line}" if begun else line
        try:
            words = shlex.split(begun, comments=True)
        except ValueError:
            continue
        if not begun.endswith("\\"):
            if words:
                yield begun
            begun = ""
    assert not begun, f"{page.name}: {begun} has no end"


def reasons(command: str) -> list[str]:
    return [text for text in CANNOT_RUN if text in command.partition("  #")[0]]


def test_what_is_left_out_and_what_is_shown_are_on_the_pages() -> None:
    lines = [command for page in PAGES.values() for command in commands(page)]
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES.values())
    assert {reason for line in lines for reason in reasons(line)} == CANNOT_RUN.keys()
    assert all(any(part in line for line in lines) for part in SHOWN)
    assert all(printed.removeprefix("vllm:") in text for printed in SHOWN.values())
    assert sum(not reasons(line) for line in lines) > 30


@contextmanager
def serving(command: str, variables: dict[str, str], folder: Path) -> Iterator[None]:
    """Run a server until the page starts another one or ends."""
    server = subprocess.Popen(["bash", "-c", f"exec {command}"], env=variables, cwd=folder)
    try:
        until = time.monotonic() + LIMIT_S
        while True:
            assert server.poll() is None and time.monotonic() < until, command
            try:
                urlopen("http://127.0.0.1:8000/health").close()
                break
            except OSError:
                time.sleep(0.5)
        yield
    finally:
        server.terminate()
        assert server.wait(60) == 0


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new user's home, which keeps compiled programs from page to page."""
    return tmp_path_factory.mktemp("home")


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name, page in PAGES.items() if any(commands(page))])
def test_a_page_of_the_guide_can_be_followed_word_for_word(
    name: str, home: Path, tmp_path: Path
) -> None:
    for folder in ("serve", "tests"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    for file, content in INPUTS.items():
        (tmp_path / file).write_text(content, encoding="utf-8")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    variables = os.environ | {"PATH": path, "HOME": f"{home}", "JAX_PLATFORMS": "cpu"}
    with ExitStack() as server:
        for command in commands(PAGES[name]):
            if reasons(command):
                continue
            here = command.replace("/tmp/", f"{tmp_path}/")
            if here.startswith("eagle3-serve") and "--print-completion" not in here:
                server.close()
                server.enter_context(serving(here, variables, tmp_path))
                continue
            done = subprocess.run(
                ["bash", "-o", "pipefail", "-c", here],
                env=variables,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
            )
            assert not done.returncode, f"{command}\n{done.stderr[-4000:]}"
            assert not command.startswith("curl") or '"error"' not in done.stdout, done.stdout
            for part, printed in SHOWN.items():
                assert part not in command or printed in done.stdout, f"{command}\n{done.stdout}"
