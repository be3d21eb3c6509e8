"""The serving benchmarks of vLLM, SGLang and InferenceX, which send random prompts."""

import json
from collections.abc import Sequence
from pathlib import Path

from clients.client import Client, Counts, Server

PROMPTS, INPUT, OUTPUT = 24, 64, 32
RANDOM = ("--dataset-name", "random", "--random-input-len", str(INPUT))
RANDOM += ("--random-output-len", str(OUTPUT), "--num-prompts", str(PROMPTS))
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


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


def read(results: Path) -> Counts:
    """What did not complete of the prompts asked for has failed."""
    completed = json.loads((results / "out.json").read_text())["completed"]
    return Counts(completed, PROMPTS - completed)


def _vllm(mode: str, *flags: str) -> Client:
    name = f"vllm bench serve, {mode}"
    return Client(name, "vllm", "vllm", lambda server, _: vllm(flags, server), read, OFFLINE)


def _sglang(backend: str) -> Client:
    flags = ("--backend", backend)
    name = f"sglang.bench_serving, {backend}"
    return Client(name, "vllm", "sglang", lambda server, _: sglang(flags, server), read, OFFLINE)


CLIENTS = (
    _vllm("completions"),
    _vllm("chat", "--backend", "openai-chat", "--endpoint", "/v1/chat/completions"),
    *map(_sglang, ("sglang", "sglang-oai", "sglang-oai-chat", "vllm")),
)
