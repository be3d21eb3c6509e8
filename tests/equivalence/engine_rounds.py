"""Drafts of the engine's rounds, which no program reports otherwise."""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle_files import golden_json
from tolerances import CLEAR_MARGIN

from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.engine.programs import compiled as programs
from eagle3_jax.engine.programs import executor
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.speculative import round as round_module


class Round(NamedTuple):
    """One draft-verify round: candidates (root first), drafts accepted, the target's next token."""

    candidates: list[int]
    accepted: int
    next: int


class Chains(NamedTuple):
    """The transcripts of a draft to check, and their k."""

    setting: str
    k: int


SHORT_CHAINS = Chains("steps3_topk1_tokens4", 3)
LONG_CHAINS = Chains("steps6_topk1_tokens7", 6)


def report_drafts(
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    propose: str,
    drafts_of: Callable[[Any], Sequence[jax.Array]],
) -> None:
    """Programs compiled from now on put what `propose` of the module returned into the report,
    between the tokens and the two counts."""
    proposed: list[Any] = []
    propose_really, run_really = getattr(module, propose), programs.speculative_round

    def keep(*inputs: Any, **options: Any) -> Any:
        proposed.append(propose_really(*inputs, **options))
        return proposed[-1]

    def run(*inputs: Any, **options: Any) -> Any:
        state, report, logprobs = run_really(*inputs, **options)
        parts = report[:, :-2], *drafts_of(proposed.pop()), report[:, -2:]
        return state, jnp.concatenate(parts, axis=1), logprobs

    monkeypatch.setattr(module, propose, keep)
    monkeypatch.setattr(programs, "speculative_round", run)
    monkeypatch.setattr(executor, "compile_program", programs.compile_program.__wrapped__)


def greedy_rounds(
    engine: Engine, prompt: list[int], max_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[np.ndarray], list[int]]:
    """The reports [columns] of a request's rounds, and its answer."""
    reports: list[jax.Array] = []
    run = engine._runner._run

    def keep(program: Any, *inputs: Any) -> tuple[Any, ...]:
        outputs = run(program, *inputs)
        reports.extend(outputs[:1] if program.batch else [])
        return outputs

    sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    answer: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(engine._runner, "_run", keep)
        engine.add(Request("x", prompt, sampling))
        while engine.has_work:
            answer += [token for output in engine.step() for token in output.token_ids]
    return [np.asarray(report)[0] for report in reports], answer


def check_engine(
    target: Target,
    draft: Eagle3Draft,
    name: str,
    chains: Chains,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine drafts, accepts and answers the same: through prefill, pages and the programs
    that serve."""
    report_drafts(monkeypatch, round_module, "propose_round", lambda made: [made[1].ids])
    engine = Engine(target, draft, EngineConfig(chains.k, max_model_len=128, max_num_seqs=1))
    for transcript, expected in _clear_transcripts(name, chains):
        reports, answer = greedy_rounds(engine, transcript["prompt"], 60, monkeypatch)
        assert _read_chains(reports, answer[0], chains.k)[: len(expected)] == expected
        assert answer[: len(transcript["output"])] == transcript["output"]


def _clear_transcripts(name: str, chains: Chains) -> list[tuple[dict[str, Any], list[Round]]]:
    """Return the transcripts without a near tie, with their rounds."""
    transcripts = golden_json(name)["transcripts"][chains.setting]
    clear = [t for t in transcripts if t["min_draft_margin"] > CLEAR_MARGIN]
    assert len(clear) >= 3
    rounds = [
        [Round(s["candidates"][0], s["accepted"], s["next"]) for s in t["steps"]] for t in clear
    ]
    return list(zip(clear, rounds, strict=True))


def _read_chains(reports: list[np.ndarray], root: int, k: int) -> list[Round]:
    """Each round's candidates begin with what the one before it said last."""
    rounds: list[Round] = []
    for report in reports:
        tokens, drafts, committed = report[: k + 1], report[k + 1 : -2], int(report[-2])
        rounds.append(Round([root, *drafts.tolist()], committed - 1, int(tokens[committed - 1])))
        root = rounds[-1].next
    return rounds
