"""The launchers, over a stand-in for InferenceX's library: what they start, what they measure."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from docs.inferencex.matrix import LAUNCHERS, Job, jobs, read_matrix
from serve.options.serve_flags import parse_serve_flags
from serve.options.serve_options import ServeOptions

LIBRARY = """\
PORT="${PORT:-8888}"
check_env_vars() { for name in "$@"; do [[ -n "${!name:-}" ]] || { echo "$name?"; exit 1; }; done; }
start_gpu_monitor() { :; }
stop_gpu_monitor() { :; }
wait_for_server_ready() { wait "$SERVER_PID"; }
run_benchmark_serving() { printf '%s\\n' "$@" > "$RESULT_DIR/client"; }
run_eval() { printf '%s\\n' "$@" > "$RESULT_DIR/eval"; }
append_lm_eval_summary() { :; }
"""
RECORD = """\
#!/usr/bin/env bash
printf '%s\\n' "$@" > "$RESULT_DIR/server"
"""
JOBS = [next(jobs(key, entry)) for key, entry in read_matrix().items()]


def launch(directory: Path, launcher: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a launcher with programs that only note how they were called."""
    (directory / "benchmarks").mkdir()
    (directory / "benchmarks" / "benchmark_lib.sh").write_text(LIBRARY)
    for program in ("eagle3-serve", "hf"):
        script = directory / program
        script.write_text(RECORD if program == "eagle3-serve" else '#!/bin/sh\necho "/hub/$3"\n')
        script.chmod(0o755)
    where = {"INFERENCEX": str(directory), "RESULT_DIR": str(directory)}
    path = f"{directory}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", launcher],
        env={"PATH": path, **where, **variables},
        capture_output=True,
        text=True,
    )


def served(directory: Path) -> ServeOptions:
    options, without_effect = parse_serve_flags((directory / "server").read_text().splitlines())
    assert not without_effect
    return options


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.launcher.stem)
def test_every_launcher_starts_a_server_as_the_job_says(job: Job, tmp_path: Path) -> None:
    done = launch(tmp_path, job.launcher, **job.variables)
    assert done.returncode == 0, done.stderr
    options, speculative = served(tmp_path), "_mtp" in job.launcher.name
    assert options.model == f"/hub/{job.variables['MODEL']}"
    assert options.served_model_name == (job.variables["MODEL"],)
    assert (options.parallel.tensor_parallel_size, options.engine.max_num_seqs) == (4, 4)
    assert options.parallel.enable_expert_parallel and not options.engine.enable_prefix_caching
    assert options.engine.num_speculative_tokens == (3 if speculative else 0)
    asked = (tmp_path / "client").read_text().splitlines()
    assert ("--use-chat-template" in asked) == speculative
    assert asked[asked.index("--num-prompts") + 1] == "40"


def test_no_launcher_is_left_out_of_the_matrix() -> None:
    assert {job.launcher for job in JOBS} == set(LAUNCHERS.glob("*.sh"))


def test_draft_k_and_synthetic_acceptance_come_from_the_environment(tmp_path: Path) -> None:
    job = replace(JOBS[1], variables={**JOBS[1].variables, "EP_SIZE": "1"})
    more = {"DRAFT": str(tmp_path), "NUM_SPECULATIVE_TOKENS": "6"}
    more |= {"SYNTHETIC_ACCEPTANCE_LENGTH": "2.88", "RUN_EVAL": "false"}
    assert launch(tmp_path, job.launcher, **job.variables, **more).returncode == 0
    options = served(tmp_path)
    assert options.speculation.draft == str(tmp_path)
    assert options.engine.num_speculative_tokens == 6
    assert options.engine.synthetic_acceptance_length == 2.88
    assert not options.parallel.enable_expert_parallel
    assert json.loads((tmp_path / "server").read_text().splitlines()[-1])["method"] == "eagle3"


@pytest.mark.parametrize(
    ("variables", "naming"),
    [
        ({"CONC": ""}, "CONC?"),
        ({"EP_SIZE": "2"}, "EP_SIZE must be 1 or TP=4"),
        ({"SYNTHETIC_ACCEPTANCE_LENGTH": "2", "RUN_EVAL": "true"}, "no evaluation"),
    ],
)
def test_a_job_that_can_not_be_run_ends_before_a_server_starts(
    variables: dict[str, str], naming: str, tmp_path: Path
) -> None:
    done = launch(tmp_path, JOBS[1].launcher, **{**JOBS[1].variables, **variables})
    assert done.returncode != 0 and naming in done.stdout + done.stderr
    assert not (tmp_path / "server").exists()


def test_an_evaluation_follows_when_asked_for(tmp_path: Path) -> None:
    done = launch(tmp_path, JOBS[0].launcher, **JOBS[0].variables, RUN_EVAL="true")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "eval").read_text().split() == ["--framework", "lm-eval", "--port", "8888"]
