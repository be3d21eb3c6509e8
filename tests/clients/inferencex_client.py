"""InferenceX's benchmark, from a checkout of its repository: it is no package."""

import json
import subprocess
from pathlib import Path

from clients.client import Client, Counts, Server

SCRIPT = Path(__file__).with_name("inferencex_script.py")


def inferencex(checkout: Path) -> Client:
    """The client in this checkout of github.com/SemiAnalysisAI/InferenceX."""

    def command(server: Server, _: Path) -> list[str]:
        argv = ["python", str(SCRIPT), str(checkout), server.url, server.model]
        return [*argv, str(server.tokenizer)]

    ask = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    version = subprocess.check_output(ask, text=True).strip()
    name = "InferenceX benchmark_serving.py, process_result.py"
    return Client(name, "vllm", "", command, read, {"HF_HUB_OFFLINE": "1"}, version)


def read(results: Path) -> Counts:
    """The first program's counts, once the second one has made a throughput of its file."""
    said = json.loads((results / "out.json").read_text())
    assert json.loads((results / "agg_out.json").read_text())["output_tput_per_gpu"] > 0
    return Counts(said["completed"], said["num_prompts"] - said["completed"])
