"""InferenceX's benchmark_serving.py, and process_result.py on what it saved.

Runs in the client's own environment. argv: InferenceX's checkout, address, model, tokenizer.
"""

import os
import subprocess
import sys
from pathlib import Path

PROMPTS, CONCURRENCY, INPUT, OUTPUT = 40, 4, 64, 32
JOB = {
    "RUNNER_TYPE": "cpu",
    "FRAMEWORK": "jax",
    "PRECISION": "fp32",
    "SPEC_DECODING": "mtp",
    "RESULT_FILENAME": "out",
    "ISL": str(INPUT),
    "OSL": str(OUTPUT),
    "DISAGG": "false",
    "MODEL_PREFIX": "demo",
    "IMAGE": "none",
    "TP": "1",
    "EP_SIZE": "1",
    "DP_ATTENTION": "false",
}


def main(checkout: Path, url: str, model: str, tokenizer: str) -> None:
    """The flags are those of its launchers: 10 prompts and 2 warm-ups a concurrent request."""
    argv = [str(checkout / "utils/bench_serving/benchmark_serving.py"), "--backend", "vllm"]
    argv += ["--model", model, "--tokenizer", tokenizer, "--base-url", url]
    argv += ["--dataset-name", "random", "--random-range-ratio", "0.8", "--use-chat-template"]
    argv += ["--random-input-len", str(INPUT), "--random-output-len", str(OUTPUT)]
    argv += ["--num-prompts", str(PROMPTS), "--max-concurrency", str(CONCURRENCY)]
    argv += ["--num-warmups", str(2 * CONCURRENCY), "--request-rate", "inf", "--ignore-eos"]
    argv += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--save-result"]
    argv += ["--result-dir", ".", "--result-filename", "out.json"]
    subprocess.run([sys.executable, *argv], check=True)
    process = str(checkout / "utils/process_result.py")
    subprocess.run([sys.executable, process], check=True, env=os.environ | JOB)


main(Path(sys.argv[1]), *sys.argv[2:])
