"""Accept lengths of drafts trained by the documented commands: `make prove-training`.

It trains the drafts that the directory lacks, an hour and a half in all, then serves every draft
and the shipped one in one run. A stopped run continues.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from convert import load_draft, load_target, load_tokenizer
from eagle3_tools.bench.common.command import write_record
from eagle3_tools.bench.common.conditions import conditions
from eagle3_tools.make_demo.__main__ import main as make_demo
from serve.train.evaluation import ServedAcceptance, evaluation_prompts

EMBEDDED = Path("serve/demo/pair")
MINIMAX = "minimax"
"""The run that makes a target."""
FEW_STEPS, SLOW = 30, "5e-4"
"""Of the runs that go on with the shipped draft, which `kl` made: what each loss does where a draft
is good already."""
PROMPTS, TOKENS, DRAFTS, CHUNK = 40, 100, 3, 64
CORPUS, HELD_OUT = "corpus.jsonl", "held_out.jsonl"
STEPS, NEW = ("--steps", "460"), ("--draft-vocab", "512")


@dataclass(frozen=True)
class Run:
    """A training run. target: another run's, or None for the embedded one. Flags are those of
    `eagle3-train draft`."""

    name: str
    flags: tuple[str, ...] = ()
    target: str | None = None

    def command(self, directory: Path) -> list[str]:
        target = directory / self.target if self.target else EMBEDDED / "target"
        return ["draft", "--target", f"{target}", "--data", f"{directory / CORPUS}", *self.flags]


@dataclass(frozen=True)
class Record:
    """rows: of each draft, how it was made and its served accept length. Prompts are held out."""

    rows: list[dict[str, Any]]
    prompts: int = PROMPTS
    answer_tokens: int = TOKENS
    drafts_a_round: int = DRAFTS


def onward(loss: str) -> Run:
    """A short run from the shipped draft."""
    first = "--init-from", f"{EMBEDDED / 'draft'}", "--loss", loss
    return Run(
        f"shipped, then {loss}",
        (*first, "--steps", f"{FEW_STEPS}", "--learning-rate", SLOW, "--seed", "1"),
    )


TARGET_FLAGS = "target", "--architecture", "minimax", "--steps", "700"
RUNS = (
    Run("kl", (*STEPS, *NEW)),
    Run("lk", (*STEPS, *NEW, "--loss", "lk")),
    Run("tv", (*STEPS, *NEW, "--loss", "tv")),
    *map(onward, ("kl", "lk", "tv")),
    Run("minimax, step 0", ("--steps", "1", *NEW, "--learning-rate", "0"), target=MINIMAX),
    Run("minimax, step 200", ("--steps", "200", *NEW), target=MINIMAX),
)


def main() -> None:
    """Trains and measures all runs, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="of the runs")
    parser.add_argument("--only", nargs="+", metavar="RUN", help=", ".join(r.name for r in RUNS))
    parser.add_argument("--json", type=Path, help="the record")
    flags = parser.parse_args()
    chosen = [run for run in RUNS if flags.only is None or run.name in flags.only]
    make_demo(["corpus", f"{flags.directory / CORPUS}"])
    held_out = ["--held-out", "--conversations", f"{PROMPTS}"]
    make_demo(["corpus", f"{flags.directory / HELD_OUT}", *held_out])
    if any(run.target for run in chosen):
        train(flags.directory / MINIMAX, list(TARGET_FLAGS), "eagle3_tools.make_demo")
    for run in chosen:
        train(flags.directory / run.name, run.command(flags.directory))
    before, record = conditions(), Record(measured(flags.directory, chosen))
    if flags.json:
        write_record(flags.json, "training", before, record)


def train(output: Path, command: list[str], module: str = "serve.train.cli") -> None:
    """Runs a training command where its output is not there yet."""
    if not (output / "model.safetensors").exists():
        more = ["--resume"] if (output / "training").exists() else []
        whole = [sys.executable, "-m", module, *command, "--output", f"{output}", *more]
        subprocess.run(whole, check=True)


def measured(directory: Path, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Served accept lengths, a row for each draft."""
    shipped: list[dict[str, Any]] = [{"draft": "shipped with the package"}]
    rows = shipped + [{"draft": run.name, **described(directory, run)} for run in runs]
    drafts = [EMBEDDED / "draft", *(directory / run.name for run in runs)]
    targets = [None, *(run.target for run in runs)]
    for name in dict.fromkeys(targets):
        path = directory / name if name else EMBEDDED / "target"
        target, tokenizer = load_target(path, dtype=jnp.float32), load_tokenizer(path)
        prompts = evaluation_prompts(tokenizer, f"{directory / HELD_OUT}", "train", PROMPTS)
        served = ServedAcceptance(target, tokenizer, prompts, DRAFTS, TOKENS, CHUNK)
        for row, draft, own in zip(rows, drafts, targets, strict=True):
            if own == name:
                found = served.measure(load_draft(draft, target, dtype=jnp.float32))
                row |= {name: round(length, 3) for name, length in found.items()}
                print(row, flush=True)
    return rows


def described(directory: Path, run: Run) -> dict[str, Any]:
    """Describe a run: seconds of its steps, on a machine that others may have used, and its last
    numbers."""
    log = (directory / run.name / "training" / "log.jsonl").read_text().splitlines()
    steps = {line["step"]: line for line in map(json.loads, log)}
    last = steps[max(steps)]
    seconds = round(sum(line["seconds"] for line in steps.values()))
    last = {name: round(last[name], 3) for name in ("loss", "agreement", "accept_length")}
    return {**asdict(run), "steps": max(steps), "seconds": seconds, "last_step": last}


if __name__ == "__main__":
    sys.exit(main())
