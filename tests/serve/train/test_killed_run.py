"""A run that is killed at any moment ends, resumed, in the same bits as one that is not."""

import json
import random
import time
from pathlib import Path

import numpy as np
import pytest
from oracle_files import ORACLES
from processes import Forked
from safetensors.numpy import load_file

STEPS, KILLS = 10, 6
TARGET = ORACLES.parents[1] / "serve" / "demo" / "pair" / "target"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Conversations of one word more each, so that samples are told apart by their length."""
    path = tmp_path_factory.mktemp("data") / "conversations.jsonl"
    rng = random.Random(0)
    words = ("sort", "add", "list", "count", "name")
    lines = []
    for number in range(60):
        said = " ".join(rng.choice(words) for _ in range(3 + number % 9))
        messages = [{"role": "user", "content": f"{number}"}]
        messages.append({"role": "assistant", "content": f"{number} {said}"})
        lines.append(json.dumps({"messages": messages}))
    path.write_text("\n".join(lines) + "\n")
    return path


def start(data: Path, output: Path, *more: str) -> Forked:
    command = ["draft", "--target", f"{TARGET}"]
    command += ["--data", f"{data}", "--output", f"{output}", "--rows", "2", "--row-length", "48"]
    command += ["--steps", f"{STEPS}", "--save-every", "2", "--unroll", "2"]
    command += ["--intermediate-size", "64", *more]
    return Forked("serve.train.cli", command, environment={"JAX_NUM_CPU_DEVICES": "1"})


def steps_logged(output: Path) -> int:
    log = output / "training" / "log.jsonl"
    return len(log.read_bytes().splitlines()) if log.exists() else 0


@pytest.mark.long
def test_a_killed_run_resumed_ends_in_the_bits_of_an_uninterrupted_one(
    data: Path, tmp_path: Path
) -> None:
    """Killed six times; `test_train_cli.py` has one that is killed once."""
    assert start(data, tmp_path / "whole").wait(300) == 0
    rng = random.Random(1)
    output, more, killed, status = tmp_path / "killed", (), 0, None
    for kill in range(KILLS + 1):
        process = start(data, output, *more)
        until = steps_logged(output) + 1
        while kill < KILLS and process.poll() is None and steps_logged(output) < until:
            time.sleep(rng.uniform(0.0, 0.01))
        if kill < KILLS and process.poll() is None:
            process.kill()
            killed += 1
        status, more = process.wait(300), ("--resume",)
    assert status == 0 and killed == KILLS
    whole, resumed = (
        load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed")
    )
    assert whole.keys() == resumed.keys()
    for name, array in whole.items():
        np.testing.assert_array_equal(array.view(np.uint16), resumed[name].view(np.uint16), name)
    losses = []
    for name in ("whole", "killed"):
        lines = (tmp_path / name / "training" / "log.jsonl").read_text().splitlines()
        losses.append({line["step"]: line["loss"] for line in map(json.loads, lines)})
    assert losses[0] == losses[1] and sorted(losses[0]) == list(range(1, STEPS + 1))
