"""Laws under limits that are set so low that small inputs reach them."""

import pytest
import test_laws as laws
from broken_programs import compile_rounds_anew
from catalogue import LATENT, divided, of_setup, replicas
from record import Record

from eagle3_jax.engine.programs import executor
from eagle3_jax.layers import mla, moe, split_context

pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("devices"),
    pytest.mark.usefixtures("room_after_each"),
]


@pytest.mark.parametrize("parts", [2, 4])
def test_gathering_a_prompt_in_chunks_changes_no_answer(
    parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefills gather latents 8 slots at a time, as for prompts of 16K tokens and more."""
    monkeypatch.setattr(mla, "EXPANDED_ROWS", 8)
    monkeypatch.setattr(split_context, "GATHERED_SLOTS", 8)
    compile_rounds_anew(monkeypatch, executor, prefills=True)
    laws.test_speculation_changes_no_answer(
        Record.of(of_setup("chunks", LATENT, divided(parts)), 500)
    )


def test_passing_experts_a_few_rows_at_a_time_changes_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With 10 rows of two replicas, a chunk of 8 takes two passes and a round of 16 takes four."""
    monkeypatch.setattr(moe, "MOST_ROWS", 10)
    compile_rounds_anew(monkeypatch, executor, prefills=True)
    laws.test_speculation_changes_no_answer(Record.of(replicas("passes", 2, 1, "latent"), 6))
