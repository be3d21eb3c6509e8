"""Benchmarks and load generators: vLLM's, SGLang's, InferenceX's, guidellm, aiperf and locust."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from clients.client import Client, Counts, Server

PROMPTS, INPUT, OUTPUT, REQUESTS = 24, 64, 32, 20
RANDOM = ("--dataset-name", "random", "--random-input-len", str(INPUT))
RANDOM += ("--random-output-len", str(OUTPUT), "--num-prompts", str(PROMPTS))
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
HERE = Path(__file__).parent
USERS, LOCUST_REQUESTS = 4, 48
"""A copy of the locustfile's values, since importing that file would patch this process."""


def vllm(flags: Sequence[str], server: Server) -> list[str]:
    """`vllm bench serve`, as vLLM's manual has it, temperature said."""
    argv = ["vllm", "bench", "serve", "--base-url", server.url, "--model", server.model]
    argv += ["--tokenizer", str(server.tokenizer), *RANDOM, "--max-concurrency", "8"]
    argv += ["--ignore-eos", "--temperature", "0", "--save-result", "--result-filename", "out.json"]
    return [*argv, *flags]


def sglang(flags: Sequence[str], server: Server) -> list[str]:
    """`python -m sglang.bench_serving`; `random-ids` needs no file of conversations."""
    argv = ["python", "-m", "sglang.bench_serving", "--base-url", server.url]
    argv += ["--model", server.model, "--tokenizer", str(server.tokenizer)]
    argv += [*RANDOM, "--dataset-name", "random-ids", "--max-concurrency", "8"]
    return [*argv, "--output-file", "out.json", *flags]


def read_out(results: Path) -> Counts:
    """A prompt that did not complete has failed."""
    completed = json.loads((results / "out.json").read_text())["completed"]
    return Counts(completed, PROMPTS - completed)


def _vllm(mode: str, *flags: str) -> Client:
    name = f"vllm bench serve, {mode}"
    return Client(name, "vllm", "vllm", lambda server, _: vllm(flags, server), read_out, OFFLINE)


def _sglang(backend: str) -> Client:
    flags, name = ("--backend", backend), f"sglang.bench_serving, {backend}"
    return Client(
        name, "vllm", "sglang", lambda server, _: sglang(flags, server), read_out, OFFLINE
    )


def guidellm(server: Server, results: Path) -> list[str]:
    """Four streams of synthetic text."""
    argv = ["guidellm", "run", "--backend"]
    argv += [f"kind=openai_http,target={server.url},model={server.model}"]
    argv += ["--tokenizer", f"kind=hf_auto,model={server.tokenizer}"]
    argv += ["--data", f"kind=synthetic_text,prompt_tokens={INPUT},output_tokens={OUTPUT}"]
    argv += ["--profile", "kind=concurrent,streams=4"]
    argv += ["--constraint", f"kind=max_requests,count={REQUESTS}"]
    return [*argv, "--output", "kind=json,path=out.json"]


def read_guidellm(results: Path) -> Counts:
    """Incomplete requests count as failed."""
    (benchmark,) = json.loads((results / "out.json").read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    return Counts(totals["successful"], totals["errored"] + totals["incomplete"])


def aiperf(server: Server, results: Path) -> list[str]:
    """Streamed chats. It takes a directory for a tokenizer only when the path is relative."""
    shutil.copytree(server.tokenizer, results / "tokenizer")
    argv = ["aiperf", "profile", "--model", server.model, "--url", server.url]
    argv += ["--endpoint-type", "chat", "--streaming", "--tokenizer", "./tokenizer"]
    argv += ["--concurrency", "4", "--request-count", str(REQUESTS)]
    argv += ["--synthetic-input-tokens-mean", str(INPUT), "--output-tokens-mean", str(OUTPUT)]
    argv += ["--extra-inputs", "ignore_eos:true", "--ui", "none"]
    return [*argv, "--artifact-dir", "out"]


def read_aiperf(results: Path) -> Counts:
    (summary,) = (results / "out").rglob("profile_export_aiperf.json")
    said = json.loads(summary.read_text())
    failed = int((said.get("error_request_count") or {}).get("avg", 0))
    return Counts(int(said["request_count"]["avg"]), failed)


def locust(server: Server, results: Path) -> list[str]:
    """Four users, each reading its answers to the end; the run time is a bound that a run does not
    reach."""
    argv = ["locust", "--headless", "--locustfile", str(HERE / "locustfile.py")]
    argv += ["--host", server.url, "--users", str(USERS), "--spawn-rate", str(USERS)]
    return [*argv, "--run-time", "10m", "--json-file", "result"]


def read_locust(results: Path) -> Counts:
    """Sums over the two endpoints; a request that was never sent has failed."""
    rows = json.loads((results / "result.json").read_text())
    completed = sum(row["num_requests"] - row["num_failures"] for row in rows)
    return Counts(completed, LOCUST_REQUESTS - completed)


def inferencex(checkout: Path) -> Client:
    """The client in this checkout of github.com/SemiAnalysisAI/InferenceX, which is no package."""

    def command(server: Server, _: Path) -> list[str]:
        argv = ["python", str(HERE / "inferencex_script.py"), str(checkout), server.url]
        return [*argv, server.model, str(server.tokenizer)]

    ask = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    version = subprocess.check_output(ask, text=True).strip()
    name = "InferenceX benchmark_serving.py, process_result.py"
    return Client(name, "vllm", "", command, read_inferencex, {"HF_HUB_OFFLINE": "1"}, version)


def read_inferencex(results: Path) -> Counts:
    """The first program's counts, once the second one has made a throughput of its file."""
    said = json.loads((results / "out.json").read_text())
    assert json.loads((results / "agg_out.json").read_text())["output_tput_per_gpu"] > 0
    return Counts(said["completed"], said["num_prompts"] - said["completed"])


LOCUST = Client("locust", "locust", "locust", locust, read_locust)
CLIENTS = (
    LOCUST,
    _vllm("completions"),
    _vllm("chat", "--backend", "openai-chat", "--endpoint", "/v1/chat/completions"),
    *map(_sglang, ("sglang", "sglang-oai", "sglang-oai-chat", "vllm")),
    Client("guidellm", "guidellm", "guidellm", guidellm, read_guidellm),
    Client("aiperf", "aiperf", "aiperf", aiperf, read_aiperf),
)
