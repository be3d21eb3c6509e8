"""Install the wheels of `make dist`, not the checkout, and run every command from another folder.

python tests/dist_check.py [PYTHON ...]    # default: those of 3.11, 3.12 and 3.13 that are found

Each Python gets an empty environment with the oldest supported JAX, and one with the newest. The
commands run in a folder whose files have the names of modules that they import.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from urllib.error import URLError
from urllib.request import Request, urlopen

from taken_names import folder_with_taken_names

ROOT = Path(__file__).parents[1]
VERSIONS = "3.11", "3.12", "3.13"
OLDEST = "jax", "jaxlib", "flax"
STEP_S = 1200
QUESTION = "What is 95 + 61?"


class Step(NamedTuple):
    """A command line, and a text that it must print. {pair}: the demo pair's directory."""

    line: str
    expected: str = ""


STEPS = (
    Step(f"eagle3-generate --demo --prompt '{QUESTION}' --temperature 0", "Answer: 156"),
    Step("eagle3-convert {pair}/target store"),
    Step("eagle3-convert --verify {pair}/target store"),
    Step("eagle3-quantize {pair}/draft draft-fp8 --scheme ptpc_fp8"),
    Step("python -P -m eagle3_tools.make_demo corpus corpus.jsonl --conversations 100"),
    Step("eagle3-train draft --target {pair}/target --data corpus.jsonl --output run --steps 2"),
    Step("eagle3-plan --model {pair}/target --gpu MI355X"),
    Step("python -P -m eagle3_tools.make_demo pictures pictures --count 2"),
)
SWEEP = "eagle3-bench sweep --url {url} --tokenizer {pair}/target --lengths 32/16"
SWEEP += " --concurrency 2 --seeds 0 --prompts-per-client 2 --warmups-per-client 1"
CHAT: Mapping[str, Any] = {
    "model": "eagle3-demo",
    "temperature": 0,
    "max_tokens": 120,
    "messages": [{"role": "user", "content": QUESTION}],
}
PROTOCOLS: Mapping[str, tuple[Mapping[str, Any], Callable[[Any], str]]] = {
    "/v1/chat/completions": (CHAT, lambda got: got["choices"][0]["message"]["content"]),
    "/v1/messages": (CHAT, lambda got: got["content"][-1]["text"]),
    "/v1/responses": (
        {"model": "eagle3-demo", "temperature": 0, "max_output_tokens": 120, "input": QUESTION},
        lambda got: got["output"][-1]["content"][0]["text"],
    ),
}


class Installed(NamedTuple):
    """An environment, the folder that commands run in, and their variables."""

    python: Path
    folder: Path
    variables: Mapping[str, str]

    def run(self, line: str) -> str:
        """Run one of its commands and return what it printed; SystemExit if it fails."""
        name, *flags = shlex.split(line)
        begun = time.monotonic()
        done = subprocess.run(
            [self.python.with_name(name), *flags],
            cwd=self.folder,
            env=dict(self.variables),
            capture_output=True,
            text=True,
            timeout=STEP_S,
        )
        if done.returncode:
            raise SystemExit(f"{line}\nended with status {done.returncode}:\n{done.stderr[-4000:]}")
        print(f"  {time.monotonic() - begun:5.0f} s  {line}", flush=True)
        return done.stdout


def pythons() -> Iterator[str]:
    """Yield an executable of each version, from PATH or pyenv."""
    roots = sorted((Path.home() / ".pyenv/versions").glob("*/bin"))
    for version in VERSIONS:
        places = [Path(found).parent for found in [shutil.which(f"python{version}")] if found]
        for place in [*places, *(root for root in roots if root.parent.name.startswith(version))]:
            command = [str(place / f"python{version}"), "-c", "pass"]
            if not subprocess.run(command, capture_output=True).returncode:
                yield command[0]
                break
        else:
            print(f"NOT CHECKED with Python {version}: not found", file=sys.stderr)


def install(python: str, folder: Path, pinned: Sequence[str]) -> Installed:
    """Create an environment of the wheels, and of these versions."""
    subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
    ours = folder / "venv/bin/python"
    product, workshop = sorted((ROOT / "dist").glob("*.whl"))
    wanted = [f"{product}[train,grammar]", str(workshop), *pinned]
    pip = [ours, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *wanted], check=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    home = folder.parent / "home"  # Compiled programs, which environments of one JAX share.
    home.mkdir(exist_ok=True)
    variables = kept | {"HOME": str(home), "JAX_PLATFORMS": "cpu"}
    return Installed(ours, folder_with_taken_names(folder), variables)


def oldest() -> list[str]:
    """Return the lower bounds of pyproject.toml as exact versions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bounds = {line.partition(">=")[0]: line for line in project["dependencies"]}
    return [bounds[name].partition(",")[0].replace(">=", "==") for name in OLDEST]


def check(installed: Installed) -> None:
    code = (
        "import serve; from pathlib import Path; print(Path(serve.__file__).parent / 'demo/pair')"
    )
    pair = installed.run(f"python -P -c {shlex.quote(code)}").strip()
    assert not pair.startswith(str(ROOT)), f"the checkout was imported: {pair}"
    for step in STEPS:
        said = installed.run(step.line.format(pair=pair))
        assert step.expected in said, f"{step.line} must print {step.expected}, got {said}"
    port, url = 18_431, "http://127.0.0.1:18431"
    server = subprocess.Popen(
        [installed.python.with_name("eagle3-serve"), "--demo", "--port", f"{port}"],
        cwd=installed.folder,
        env=dict(installed.variables),
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_ready(url, server)
        for path, (body, text_of) in PROTOCOLS.items():
            text = text_of(post(f"{url}{path}", body))
            assert "156" in text, f"{path} must answer 156, got {text!r}"
            print(f"           POST {path}", flush=True)
        installed.run(SWEEP.format(url=url, pair=pair))
    finally:
        server.terminate()
        status = server.wait(60)
    assert status == 0, f"the server ended with status {status}"


def wait_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + STEP_S
    while time.monotonic() < until and server.poll() is None:
        try:
            with urlopen(f"{url}/health", timeout=10):
                return
        except (URLError, OSError):
            time.sleep(0.5)
    raise SystemExit(f"the server was not ready within {STEP_S} s; its status is {server.poll()}")


def post(url: str, body: Mapping[str, Any]) -> Any:
    data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
    with urlopen(Request(url, data, headers), timeout=STEP_S) as answer:
        return json.load(answer)


def main(given: Sequence[str]) -> None:
    with TemporaryDirectory() as place:
        for number, python in enumerate(given or pythons()):
            seen = set[str]()
            for pinned in (oldest(), []):
                folder = Path(place) / f"{number}-{len(seen)}"
                folder.mkdir()
                installed = install(python, folder, pinned)
                code = "import jax, sys; print('JAX', jax.__version__, 'Python', sys.version)"
                version = installed.run(f"python -P -c {shlex.quote(code)}").split("(")[0]
                if version not in seen:
                    print(version, flush=True)
                    check(installed)
                seen.add(version)
                shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
