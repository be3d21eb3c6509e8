"""Whole generations with trees against transcripts of EAGLE's own loop, through the engine."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle_files import golden_json

from eagle3_jax.engine import Engine, EngineConfig, Request, executor, programs
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.sampling_params import SamplingParams
from eagle3_jax.speculative import tree_round as round_module
from eagle3_jax.speculative.tree import Tree
from eagle3_jax.speculative.tree_propose import propose_tree
from eagle3_jax.speculative.tree_round import tree_round

STEPS, TOPK, NODES = 3, 4, 12
SETTING = "steps3_topk4_tokens12"


@dataclass(frozen=True)
class TreeRound:
    """The paths to every leaf, padded with -1, drafts accepted, and the target's next token."""

    candidates: list[list[int]]
    accepted: int
    next: int


def reporting_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs compiled from now on put the tree into the report, behind the tokens."""
    grown: list[Tree] = []

    def grow(*inputs: Any) -> Any:
        tree, pools = propose_tree(*inputs)
        grown.append(tree)
        return tree, pools

    def run(*inputs: Any, **options: Any) -> Any:
        state, report, logprobs = tree_round(*inputs, **options)
        tree = grown.pop()
        parts = report[:, : STEPS + 1], tree.tokens, tree.parents, report[:, STEPS + 1 :]
        return state, jnp.concatenate(parts, axis=1), logprobs

    monkeypatch.setattr(round_module, "propose_tree", grow)
    monkeypatch.setattr(programs, "tree_round", run)
    monkeypatch.setattr(executor, "compile_program", programs.compile_program.__wrapped__)


def read_round(report: np.ndarray) -> TreeRound:
    tokens, rest = report[: STEPS + 1], report[STEPS + 1 :]
    ids, parents, committed = rest[:NODES].tolist(), rest[NODES : 2 * NODES].tolist(), rest[-2]
    leaves = [node for node in range(1, NODES) if node not in parents]
    paths = []
    for node in leaves:
        path = [ids[node]]
        while node:
            node = parents[node]
            path.insert(0, ids[node])
        paths.append(path)
    deepest = max(map(len, paths))
    padded = [path + [-1] * (deepest - len(path)) for path in paths]
    return TreeRound(padded, int(committed) - 1, int(tokens[committed - 1]))


def generate(engine: Engine, prompt: list[int], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Rounds and answer of one greedy request."""
    reports: list[jax.Array] = []
    runner = engine._runner
    run = runner._run

    def keep(program: Any, *inputs: Any) -> tuple[Any, ...]:
        outputs = run(program, *inputs)
        reports.extend(outputs[:1] if program.batch else [])
        return outputs

    monkeypatch.setattr(runner, "_run", keep)
    engine.add(Request("x", prompt, SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)))
    answer: list[int] = []
    while engine.has_work:
        answer += [token for output in engine.step() for token in output.token_ids]
    monkeypatch.setattr(runner, "_run", run)
    return [read_round(np.asarray(report)[0]) for report in reports], answer


@pytest.mark.parametrize("draft", ["draft_mha_bf16"], indirect=True)
def test_candidates_and_accepted_paths_are_eagles(
    target: Target, draft: Eagle3Draft, monkeypatch: pytest.MonkeyPatch
) -> None:
    reporting_trees(monkeypatch)
    config = EngineConfig(
        STEPS, max_model_len=128, max_num_seqs=1, eagle_topk=TOPK, num_draft_tokens=NODES
    )
    engine = Engine(target, draft, config)
    transcripts = golden_json("draft_mha_bf16")["transcripts"][SETTING]
    for transcript in transcripts:
        expected = [
            TreeRound(step["candidates"], step["accepted"], step["next"])
            for step in transcript["steps"]
        ]
        rounds, answer = generate(engine, transcript["prompt"], monkeypatch)
        assert rounds[: len(expected)] == expected
        assert answer[: len(transcript["output"])] == transcript["output"]
    assert len(transcripts) == 5
