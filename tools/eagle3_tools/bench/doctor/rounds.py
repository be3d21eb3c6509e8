"""Compare the embedded pair's rounds on the devices with the CPU's tokens under the tie rule."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from convert import load_target
from convert.text.tokenizer import load_tokenizer
from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.mesh import make_mesh
from eagle3_jax.sampling.params import SamplingParams
from eagle3_tools.bench.common.drive import drive
from eagle3_tools.bench.common.held_out import held_out
from eagle3_tools.bench.doctor.findings import Finding, Run
from eagle3_tools.bench.doctor.pair import heads_repeated, load_pair
from eagle3_tools.bench.equality.ties import Difference, Scorer, describe
from eagle3_tools.checks.pool import Failure
from serve.demo import demo_target_dir

SIZES = (1, 2, 4, 8)
PROCESSES = 2
REQUESTS, TOKENS = 4, 24
SAMPLINGS = (
    SamplingParams(temperature=0.0, max_tokens=TOKENS, seed=0),
    SamplingParams(temperature=0.8, max_tokens=TOKENS, seed=1),
)
CONFIG = EngineConfig(
    num_speculative_tokens=3,
    max_model_len=256,
    max_num_seqs=REQUESTS,
    batch_buckets=(REQUESTS,),
    enable_structured_outputs=False,
)
Tokens = list[list[int]]


@dataclass(frozen=True)
class PlainOnCpu:
    """Job that decodes without drafts on the CPU; its process uses no other device."""

    def __call__(self) -> Tokens:
        jax.config.update("jax_platforms", "cpu")
        return _answer(replace(CONFIG, num_speculative_tokens=0), 1)


@dataclass(frozen=True)
class Round:
    """Job that decodes with drafts on `size` devices, in float32 like the CPU.

    `context_parts` is the decode context parallel size.
    """

    size: int
    xla_kernels: tuple[str, ...] = ()
    context_parts: int = 1

    def __call__(self) -> Tokens:
        kernels = "pallas" if jax.default_backend() == "cpu" else None
        with jax.default_matmul_precision("highest"):
            config = replace(
                CONFIG,
                kernels=kernels,
                xla_kernels=self.xla_kernels,
                decode_context_parallel_size=self.context_parts,
            )
            return _answer(config, self.size)


@dataclass(frozen=True)
class Explain:
    """Job that searches for the tie behind each difference of answers, on the CPU."""

    expected: Tokens
    got: Tokens

    def __call__(self) -> list[Difference]:
        jax.config.update("jax_platforms", "cpu")
        target = load_target(demo_target_dir(), dtype=jnp.float32)
        scorer = Scorer(target, CONFIG.max_model_len, target.config.eos_token_ids)
        return scorer.differences(_requests(), self.expected, self.got)


def check_rounds(
    devices: int, xla_kernels: tuple[str, ...], run: Run, context_parts: int = 1
) -> Iterator[Finding]:
    """Check all tensor parallel sizes; those `context_parts` divides also with split contexts."""
    (expected,) = run([PlainOnCpu()])
    if isinstance(expected, Failure):
        yield Finding("FAILED", "round", "of the CPU", expected.reason, "nothing to compare with")
        return
    sizes = [size for size in SIZES if size <= devices]
    jobs = [Round(size, xla_kernels) for size in sizes]
    divided = [size for size in sizes if context_parts > 1 and size % context_parts == 0]
    jobs += [Round(size, xla_kernels, context_parts) for size in divided]
    results = run(jobs, processes=PROCESSES)
    for job, got in zip(jobs, results, strict=True):
        yield _finding(job, expected, got, run)


def _finding(job: Round, expected: Tokens, got: Tokens | Failure, run: Run) -> Finding:
    times, parts = heads_repeated(job.size), job.context_parts
    subject = (
        "of the embedded pair"
        + f", its heads {times} times," * (times > 1)
        + f" at TP {job.size}"
        + f", contexts in {parts} parts" * (parts > 1)
    )
    if isinstance(got, Failure):
        return Finding("FAILED", "round", subject, got.brief, LOOK_ABOVE)
    differing = sum(a != b for a, b in zip(expected, got, strict=True))
    if not differing:
        return Finding("ok", "round", subject, f"{len(got)} answers have the CPU's tokens")
    (found,) = run([Explain(expected, got)])
    if isinstance(found, Failure):
        return Finding(
            "FAILED", "round", subject, found.reason, "the differences are not explained"
        )
    errors = [difference for difference in found if difference.cause is None]
    seen = f"{differing} of {len(got)} answers differ from the CPU's"
    if not errors:
        return Finding("ok", "round", subject, f"{seen} by a tie")
    return Finding("WRONG", "round", subject, f"{seen}; {describe(errors[0])}", LOOK_ABOVE)


LOOK_ABOVE = (
    "kernels or all-reduces that are wrong above explain it, run again with their --xla-kernels; "
    "if all are right, report it"
)


def _answer(config: EngineConfig, size: int) -> Tokens:
    target, draft = load_pair(make_mesh(size) if size > 1 else None)
    proposing = draft if config.num_speculative_tokens else None
    engine = Engine(target, proposing, config, eos_token_ids=target.config.eos_token_ids)
    requests = _requests()
    said = drive(engine, requests)
    return [said[request.request_id].token_ids for request in requests]


def _requests() -> Sequence[Request]:
    prompts = held_out(load_tokenizer(demo_target_dir()), 1)[: REQUESTS // len(SAMPLINGS)]
    return [
        Request(f"{prompt.category}, T = {sampling.temperature}", prompt.token_ids, sampling)
        for prompt in prompts
        for sampling in SAMPLINGS
    ]
