"""An engine over a directory of pages that others have been at: the same answers, and counts."""

from dataclasses import replace
from pathlib import Path

import pytest
from driving import Answer, drive
from simulated_device import SimulatedRunner, plain_answer, simulated_pair

from eagle3_jax.engine import Engine, EngineConfig, EngineStats, Request
from eagle3_jax.sampling.params import SamplingParams

SIZE = 4096
CONFIG = EngineConfig(3, 64, 2, 4, num_pages=33, prefill_chunk=8, kv_offloading_bytes=100 * SIZE)
PROMPT = Request("a", [*range(16), 3], SamplingParams(max_tokens=1, seed=1))


def served(
    directory: Path, monkeypatch: pytest.MonkeyPatch, requests: list[Request]
) -> tuple[dict[str, Answer], EngineStats]:
    """By an engine of its own, whose pages are in the directory once it has ended."""
    monkeypatch.setattr(SimulatedRunner, "page_bytes", SIZE)
    kept = {"kv_offloading_dir": str(directory), "kv_offloading_dir_bytes": 400 * SIZE}
    engine = Engine(*simulated_pair(monkeypatch), replace(CONFIG, **kept))
    answers, stats = drive(engine, requests), engine.stats()
    engine.close()
    return answers, stats


def test_damaged_and_foreign_files_are_counted_and_cost_a_prefill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served(tmp_path, monkeypatch, [PROMPT])
    first, *others = sorted(tmp_path.rglob("*.page"))
    assert len(others) == 3
    data = bytearray(first.read_bytes())
    data[-1] ^= 1
    first.write_bytes(data)
    (tmp_path / "notes.txt").write_text("mine")
    answers, stats = served(tmp_path, monkeypatch, [PROMPT])
    assert (stats.damaged_pages, stats.failed_fetches, stats.foreign_files) == (1, 1, 1)
    assert answers["a"].token_ids == plain_answer(PROMPT, CONFIG)[0]
    assert stats.cached.disk < 16
    _, stats = served(tmp_path, monkeypatch, [PROMPT])
    assert (stats.damaged_pages, stats.failed_fetches, stats.cached.disk) == (0, 0, 16)


def test_several_processes_keep_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has its own devices' part of a page only."""
    kept = {"kv_offloading_dir": str(tmp_path), "kv_offloading_dir_bytes": 400 * SIZE}
    monkeypatch.setattr(SimulatedRunner, "page_bytes", SIZE)
    target, draft = simulated_pair(monkeypatch)
    monkeypatch.setattr(
        "eagle3_jax.engine.engine.Runner",
        lambda *pair, peers, **given: SimulatedRunner(*pair, peers=None, **given),
    )
    peers: object = object()
    with pytest.raises(ValueError, match="several processes as one engine keep no pages on disk"):
        Engine(target, draft, replace(CONFIG, **kept), peers=peers)  # type: ignore[arg-type]
