"""Write one run as `benchmark_serving.py --save-result` does, for InferenceX.

Its utils/process_result.py reads the file. Acceptance has the names of `vllm bench serve`;
everything else is under the key `eagle3`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import numpy as np

from eagle3_tools.bench.common.accept_length import AcceptCounts, distinct_bigrams
from eagle3_tools.bench.common.conditions import Conditions
from eagle3_tools.bench.load.lengths import Workload
from eagle3_tools.bench.load.openai_server import Outcome
from eagle3_tools.bench.load.prompts import Prompt
from eagle3_tools.bench.load.traffic import Traffic

Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True)
class Point:
    """One run of a sweep. `gpus` share the model; throughput is divided by their number."""

    configuration: str
    model: str
    tokenizer: str
    workload: Workload
    concurrency: int
    seed: int
    rate: float
    gpus: int
    device: str
    server: str


def result_json(
    point: Point,
    prompts: Sequence[Prompt],
    traffic: Traffic,
    counts: AcceptCounts | None,
    encode: Encode,
    found: Conditions,
    percentiles: Sequence[float],
) -> dict[str, Any]:
    """Build the result; `encode` counts tokens for diversity, and if usage is missing.

    Top-level keys that end with `ms` or contain `tpot` must be latencies, because InferenceX's
    reader treats each of them as a time.
    """
    answers = [(p, o) for p, o in zip(prompts, traffic.outcomes, strict=True) if not o.error]
    lens = [0 if o.error else _tokens(o, encode) for o in traffic.outcomes]
    total_input, total_output = sum(p.num_tokens for p, _ in answers), sum(lens)
    seconds = traffic.duration
    return {
        "date": datetime.fromtimestamp(traffic.started).strftime("%Y%m%d-%H%M%S"),
        "backend": "vllm",
        "model_id": point.model,
        "tokenizer_id": point.tokenizer,
        "best_of": 1,
        "num_prompts": len(prompts),
        "request_rate": point.rate if point.rate < float("inf") else "inf",
        "burstiness": 1.0,
        "max_concurrency": point.concurrency,
        "duration": seconds,
        "benchmark_start_time_unix": traffic.started,
        "benchmark_end_time_unix": traffic.started + seconds,
        "completed": len(answers),
        "total_input_tokens": total_input,
        "total_output_tokens": total_output,
        "request_throughput": len(answers) / seconds,
        "request_goodput:": None,
        "output_throughput": total_output / seconds,
        "total_token_throughput": (total_input + total_output) / seconds,
        "input_lens": [p.num_tokens for p in prompts],
        "output_lens": lens,
        **_latencies(traffic.outcomes, lens, percentiles),
        **_acceptance(counts),
        "eagle3": _ours(point, traffic, answers, counts, encode, found)
        | {
            "output_tput_per_gpu": total_output / seconds / point.gpus,
            "tput_per_gpu": (total_input + total_output) / seconds / point.gpus,
        },
    }


def _tokens(outcome: Outcome, encode: Encode) -> int:
    """Return the server's token count, else that of the text; an event may carry several tokens."""
    if outcome.completion_tokens is None:
        return len(encode(outcome.text))
    return outcome.completion_tokens


def _latencies(
    outcomes: Sequence[Outcome], lens: Sequence[int], percentiles: Sequence[float]
) -> dict[str, float]:
    """Compute latencies in milliseconds by the formulas of benchmark_serving.py.

    TPOT is per request without the first token; ITL is between events.
    """
    answered = [(o, n) for o, n in zip(outcomes, lens, strict=True) if not o.error]
    samples = {
        "ttft": [o.ttft for o, _ in answered],
        "tpot": [(o.latency - o.ttft) / (n - 1) for o, n in answered if n > 1],
        "itl": [gap for o, _ in answered for gap in o.gaps],
        "e2el": [o.latency for o, _ in answered],
    }
    found: dict[str, float] = {}
    for name, seconds in samples.items():
        found |= _statistics(name, np.asarray(seconds) * 1e3, percentiles)
    return found


def _statistics(name: str, ms: np.ndarray, percentiles: Sequence[float]) -> dict[str, float]:
    if not len(ms):
        return {}
    found = {"mean": np.mean(ms), "median": np.median(ms)}
    # The reader would compute 1 / std, and divide by 0 if all times are equal.
    if np.std(ms) > 0:
        found["std"] = np.std(ms)
    found |= {f"p{percentile:g}": np.percentile(ms, percentile) for percentile in percentiles}
    return {f"{statistic}_{name}_ms": float(value) for statistic, value in found.items()}


def _acceptance(counts: AcceptCounts | None) -> dict[str, Any]:
    if counts is None:
        return {}
    return {
        "spec_decode_acceptance_rate": 100 * counts.accepted / max(counts.draft_tokens, 1),
        "spec_decode_acceptance_length": counts.accept_length,
        "spec_decode_num_drafts": counts.drafts,
        "spec_decode_draft_tokens": counts.draft_tokens,
        "spec_decode_accepted_tokens": counts.accepted,
        "spec_decode_per_position_acceptance_rates": list(counts.per_position),
    }


def _ours(
    point: Point,
    traffic: Traffic,
    answers: Sequence[tuple[Prompt, Outcome]],
    counts: AcceptCounts | None,
    encode: Encode,
    found: Conditions,
) -> dict[str, Any]:
    errors = [outcome.error for outcome in traffic.outcomes if outcome.error]
    synthetic = next((o.synthetic for _, o in answers if o.synthetic is not None), None)
    short = sum(o.completion_tokens not in (None, p.max_tokens) for p, o in answers)
    counted = [o.prompt_tokens for _, o in answers if o.prompt_tokens is not None]
    return {
        "configuration": point.configuration,
        "workload": asdict(point.workload),
        "seed": point.seed,
        "gpus": point.gpus,
        "device": point.device,
        "server": point.server,
        "failed": len(errors),
        "first_error": errors[0] if errors else None,
        "answers_of_another_length": short,
        "server_input_tokens": sum(counted) if len(counted) == len(answers) else None,
        "accept_length": counts.accept_length if counts else None,
        "acceptance_per_position": list(counts.per_position) if counts else None,
        "synthetic_acceptance_length": synthetic,
        # The text of synthetic acceptance is not the model's.
        "distinct_bigrams": distinct_bigrams(encode(o.text) for _, o in answers)
        if synthetic is None
        else None,
        "conditions": asdict(found),
    }


def point_of(result: Mapping[str, Any]) -> str:
    """Return the name of a run, which is also its file's."""
    ours, load = result["eagle3"], result["eagle3"]["workload"]
    lengths = f"isl{load['isl']}_osl{load['osl']}"
    return f"{ours['configuration']}_{lengths}_conc{result['max_concurrency']}_seed{ours['seed']}"
