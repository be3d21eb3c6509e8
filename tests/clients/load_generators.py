"""guidellm and aiperf."""

import json
import shutil
from pathlib import Path

from clients.client import Client, Counts, Server

REQUESTS = 20


def guidellm(server: Server, results: Path) -> list[str]:
    """Four streams of synthetic text."""
    argv = ["guidellm", "run", "--backend"]
    argv += [f"kind=openai_http,target={server.url},model={server.model}"]
    argv += ["--tokenizer", f"kind=hf_auto,model={server.tokenizer}"]
    argv += ["--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=32"]
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
    argv += ["--synthetic-input-tokens-mean", "64", "--output-tokens-mean", "32"]
    argv += ["--extra-inputs", "ignore_eos:true", "--ui", "none"]
    return [*argv, "--artifact-dir", "out"]


def read_aiperf(results: Path) -> Counts:
    """Of the summary that it exports."""
    (summary,) = (results / "out").rglob("profile_export_aiperf.json")
    said = json.loads(summary.read_text())
    failed = int((said.get("error_request_count") or {}).get("avg", 0))
    return Counts(int(said["request_count"]["avg"]), failed)


CLIENTS = (
    Client("guidellm", "guidellm", "guidellm", guidellm, read_guidellm),
    Client("aiperf", "aiperf", "aiperf", aiperf, read_aiperf),
)
