"""Check that outputs are equal over k, batch size, preemption and repeated runs.

All prompts run under all sampling settings, through one engine for each case. Outside exact mode
every answer is compared with plain decoding of one sequence at a time, and differences must be ties
(`equality/ties.py`). In exact mode speculative and plain answers of one bucket and k are equal.
"""

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from rich.console import Console

from convert.command_line.options import COUNT
from eagle3_jax.engine import CollectedOutput, Engine, EngineConfig, Request
from eagle3_jax.sampling.params import SamplingParams
from eagle3_tools.bench.common.command import finish, given_pair
from eagle3_tools.bench.common.conditions import conditions
from eagle3_tools.bench.common.drive import drive
from eagle3_tools.bench.common.flags import add_pair_flags, add_shared
from eagle3_tools.bench.common.held_out import held_out
from eagle3_tools.bench.equality.cases import Case, Group, full_plan, quick_plan
from eagle3_tools.bench.equality.ties import Difference, Scorer, describe
from serve.options.parallel import add_parallel_flags, notify_of_interleaving
from serve.pair.loading import LoadedPair
from serve.pair.notices import print_to_stderr

REQUESTS_PER_TIE = 500
PAGE_SIZE = 16
QUICK_PROMPTS, PROMPTS = 2, 40
QUICK_TOKENS, TOKENS = 24, 64

SETTINGS = {
    "greedy": SamplingParams(temperature=0.0),
    "T=0.6 top-p min-p": SamplingParams(temperature=0.6, top_p=0.9, min_p=0.02),
    "T=1.0 top-p min-p": SamplingParams(temperature=1.0, top_p=0.95, min_p=0.05),
}


@dataclass(frozen=True)
class CaseResult:
    """Result of one case. `reference`: the other cases of its group are compared with it."""

    name: str
    reference: bool
    exact: bool
    compared: int
    identical: int
    differences: list[Difference]
    preemptions: int
    tokens: int
    seconds: float
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class EqualResult:
    """Results of all cases. `ties` counts explained differences outside exact mode."""

    prompts: int
    settings: tuple[str, ...]
    max_tokens: int
    cases: list[CaseResult]
    compared: int
    identical: int
    ties: int
    failures: list[str]

    @property
    def holds(self) -> bool:
        return not self.failures


def add_flags(parser: argparse.ArgumentParser) -> None:
    add_pair_flags(parser)
    add_parallel_flags(parser)
    parser.add_argument(
        "--quick", action="store_true", help="use few prompts and one case of each kind"
    )
    add_shared(parser, "--prompts", help="held-out prompts a category; default 40 (quick: 2)")
    parser.add_argument(
        "--max-tokens", type=COUNT, metavar="N", help="tokens of an answer; default 64 (quick: 24)"
    )
    parser.add_argument(
        "--rejection-sample-method", default="coupled", metavar="NAME", help="coupled"
    )


def run(flags: argparse.Namespace, console: Console) -> int:
    """Compare outputs over k, batch and preemption; return 1 if one differs."""
    if PAGE_SIZE % flags.decode_context_parallel_size:
        raise ValueError(
            f"--decode-context-parallel-size must divide a page of {PAGE_SIZE} tokens here; got "
            f"{flags.decode_context_parallel_size}"
        )
    parts, asked = flags.decode_context_parallel_size, flags.kv_cache_interleave_size
    notify_of_interleaving(asked, parts, PAGE_SIZE // parts, print_to_stderr)
    found, pair = conditions(), given_pair(flags)
    prompts = held_out(pair.tokenizer, flags.prompts or (QUICK_PROMPTS if flags.quick else PROMPTS))
    result = check_equal(
        pair,
        [prompt.token_ids for prompt in prompts],
        quick_plan() if flags.quick else full_plan(),
        max_tokens=flags.max_tokens or (QUICK_TOKENS if flags.quick else TOKENS),
        on_case=lambda case: print_case(console, case),
        context_parts=flags.decode_context_parallel_size,
    )
    print_result(console, result)
    return finish(flags, "equal", found, result)


def print_case(console: Console, case: CaseResult) -> None:
    role = "reference" if case.reference else f"{case.identical} of {case.compared} equal"
    preempted = f", {case.preemptions} preemptions" if case.preemptions else ""
    console.print(f"{case.name}: {role}{preempted} ({case.tokens} tokens, {case.seconds:.0f} s)")
    for difference in case.differences:
        console.print(f"  {describe(difference)}")


def print_result(console: Console, result: EqualResult) -> None:
    console.print(
        f"{result.prompts} prompts x {len(result.settings)} settings: {result.identical} of "
        f"{result.compared} answers identical, {result.ties} differ by a tie, "
        f"{len(result.failures)} failures"
    )
    for failure in result.failures:
        console.print(f"FAILED {failure}")


def check_equal(
    pair: LoadedPair,
    prompts: Sequence[Sequence[int]],
    plan: Iterable[Group],
    max_tokens: int,
    on_case: Callable[[CaseResult], None] = lambda _: None,
    context_parts: int = 1,
) -> EqualResult:
    """Run the plan with contexts split in `context_parts`; call `on_case` after each case."""
    runner = _Runner(pair, prompts, max_tokens, context_parts)
    cases: list[CaseResult] = []
    for group in plan:
        for result in runner.run(group):
            on_case(result)
            cases.append(result)
    return summarize(cases, len(prompts), max_tokens)


def summarize(cases: list[CaseResult], prompts: int, max_tokens: int) -> EqualResult:
    """Add up the cases and apply the limit on ties."""
    others = [case for case in cases if not case.reference]
    compared = sum(case.compared for case in others)
    free = [case for case in others if not case.exact]
    ties = sum(d.cause is not None for case in free for d in case.differences)
    failures = [failure for case in cases for failure in case.failures]
    allowed = -(-sum(case.compared for case in free) // REQUESTS_PER_TIE)
    if ties > allowed:
        failures.append(
            f"{ties} answers differ by a tie, at most {allowed} may (1 in {REQUESTS_PER_TIE})"
        )
    return EqualResult(
        prompts=prompts,
        settings=tuple(SETTINGS),
        max_tokens=max_tokens,
        cases=cases,
        compared=compared,
        identical=sum(case.identical for case in others),
        ties=ties,
        failures=failures,
    )


def requests_of(prompts: Sequence[Sequence[int]], max_tokens: int) -> list[Request]:
    """Return the prompts under all sampling settings, with seeds."""
    return [
        Request(
            f"prompt {i}, {name}",
            list(prompt),
            replace(sampling, seed=1000 * i + s, max_tokens=max_tokens),
        )
        for i, prompt in enumerate(prompts)
        for s, (name, sampling) in enumerate(SETTINGS.items())
    ]


class _Runner:
    """The requests of every prompt and setting, and the engines that answer them."""

    def __init__(
        self,
        pair: LoadedPair,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        context_parts: int,
    ) -> None:
        assert pair.draft is not None, "the flags ask for a draft"
        self._pair, self._context_parts = pair, context_parts
        self._requests = requests_of(prompts, max_tokens)
        longest = max(map(len, prompts)) + max_tokens
        self._max_len = -(-longest // PAGE_SIZE) * PAGE_SIZE
        self._scorer = Scorer(pair.target, self._max_len, pair.eos_token_ids)

    def run(self, group: Group) -> Iterable[CaseResult]:
        """Yield the result of the reference, then those of the other cases."""
        expected, result = self._answer(group.reference)
        yield result
        for case in group.others:
            answers, result = self._answer(case)
            yield self._compare(result, answers, expected)

    def _answer(self, case: Case) -> tuple[dict[str, CollectedOutput], CaseResult]:
        start = time.perf_counter()
        engine = self._engine(case)
        answers = drive(engine, self._requests)
        stats = engine.stats()
        result = CaseResult(
            name=case.name,
            reference=True,
            exact=case.exact,
            compared=len(answers),
            identical=len(answers),
            differences=[],
            preemptions=stats.num_preemptions,
            tokens=stats.generation_tokens,
            seconds=time.perf_counter() - start,
        )
        if case.few_pages and not stats.num_preemptions:
            result.failures.append(f"{case.name}: nothing was preempted, so nothing was tested")
        if stats.free_pages != stats.total_pages:
            lost = stats.total_pages - stats.free_pages
            result.failures.append(f"{case.name}: {lost} pages were not given back")
        return answers, result

    def _engine(self, case: Case) -> Engine:
        pair, pages = self._pair, self._max_len // PAGE_SIZE + 1 if case.few_pages else None
        config = EngineConfig(
            num_speculative_tokens=case.num_speculative_tokens,
            max_model_len=self._max_len,
            max_num_seqs=case.batch,
            page_size=PAGE_SIZE // self._context_parts,
            decode_context_parallel_size=self._context_parts,
            num_pages=pages,
            batch_buckets=None if case.exact else (case.batch,),
            exact=case.exact,
        )
        draft = pair.draft if case.speculative else None
        return Engine(pair.target, draft, config, eos_token_ids=pair.eos_token_ids)

    def _compare(
        self,
        result: CaseResult,
        answers: dict[str, CollectedOutput],
        expected: dict[str, CollectedOutput],
    ) -> CaseResult:
        ours, theirs = (
            [said[request.request_id].token_ids for request in self._requests]
            for said in (expected, answers)
        )
        found = self._scorer.differences(self._requests, ours, theirs)
        errors = [d for d in found if result.exact or d.cause is None]
        failures = [f"{result.name}: {describe(d)}" for d in errors]
        return replace(
            result,
            reference=False,
            identical=result.compared - len(found),
            differences=found,
            failures=result.failures + failures,
        )
