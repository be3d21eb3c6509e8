"""Whole speculative generations against transcripts of EAGLE's own loop."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from engine_rounds import (
    LONG_CHAINS,
    SHORT_CHAINS,
    Chains,
    check_engine,
    greedy_rounds,
    report_drafts,
)
from oracle_files import ALL_DRAFTS, MINIMAX_DRAFT, golden_json
from sweeps import sweep

from eagle3_jax.engine import Engine, EngineConfig
from eagle3_jax.speculative import round as round_module

NAMES = (*ALL_DRAFTS, MINIMAX_DRAFT)
CASES = [(name, name, chains) for chains in (SHORT_CHAINS, LONG_CHAINS) for name in NAMES]
KEPT = ["draft_mla_bf16", MINIMAX_DRAFT]
"""Trees have the other kind of attention; test_draft_goldens.py has chains of every format."""


@pytest.mark.parametrize(
    ("pair", "name", "chains"),
    sweep(CASES, [(name, name, SHORT_CHAINS) for name in KEPT]),
    indirect=["pair"],
)
def test_the_engines_rounds_are_eagles(
    pair: Any, name: str, chains: Chains, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In chains every draft of every round, accepted counts and tokens are equal."""
    check_engine(*pair, name, chains, monkeypatch)


STEPS, TOPK, NODES = 3, 4, 12
SETTING = "steps3_topk4_tokens12"


@dataclass(frozen=True)
class TreeRound:
    """The paths to every leaf, padded with -1, drafts accepted, and the target's next token."""

    candidates: list[list[int]]
    accepted: int
    next: int


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


@pytest.mark.parametrize("pair", ["draft_mha_bf16"], indirect=True)
def test_the_engines_trees_are_eagles(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    report_drafts(
        monkeypatch,
        round_module,
        "propose_tree",
        lambda made: (made[0].tokens, made[0].parents),
    )
    config = EngineConfig(
        STEPS, max_model_len=128, max_num_seqs=1, eagle_topk=TOPK, num_draft_tokens=NODES
    )
    target, draft = pair
    engine = Engine(target, draft, config)
    transcripts = golden_json("draft_mha_bf16")["transcripts"][SETTING]
    for transcript in transcripts:
        expected = [
            TreeRound(step["candidates"], step["accepted"], step["next"])
            for step in transcript["steps"]
        ]
        reports, answer = greedy_rounds(engine, transcript["prompt"], 60, monkeypatch)
        assert [read_round(report) for report in reports[: len(expected)]] == expected
        assert answer[: len(transcript["output"])] == transcript["output"]
    assert len(transcripts) == 5
