"""Little moves between host and devices, and the state is updated in place."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest
from driving import sizes
from toy_tokenizer import ToyTokenizer
from traffic import drive_waves, random_requests

from eagle3_jax.engine import Engine, Request
from eagle3_jax.engine.chunk_plan import ChunkPlan
from eagle3_jax.engine.programs.runner import ProgramOutput
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.speculative.head_choice import chooses_in_kernel

K = 3


WARMED: list[tuple[str, int, int]] = []
"""Messages of the engine's warm-up."""


@pytest.fixture(scope="module")
def engine(target: Target, draft: Eagle3Draft) -> Engine:
    """An engine that is ready."""
    config = sizes(K, batch_buckets=(1, 4))
    engine = Engine(target, draft, config, tokenizer=ToyTokenizer(), eos_token_ids=(7,))
    engine.warmup(lambda *step: WARMED.append(step))
    return engine


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of every device-to-host read, explicit or not."""
    sizes: list[int] = []
    array: Any = type(jax.numpy.zeros(1))
    value = array._value

    def counted(self: Any) -> Any:
        sizes.append(self.nbytes)
        return value.fget(self)

    monkeypatch.setattr(array, "_value", property(counted))
    return sizes


def test_each_program_that_has_news_is_read_once_and_the_read_is_small(
    engine: Engine, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report is four bytes a number, k + 3 numbers a row of a round: nobody asks for logprobs."""
    dispatched: list[str] = []
    run_round, run_prefill = engine._runner.round, engine._runner.prefill

    def counted_round(*inputs: Any) -> ProgramOutput:
        dispatched.append("round")
        return run_round(*inputs)

    def counted_prefill(chunks: Sequence[ChunkPlan], masks: Any = None) -> ProgramOutput:
        dispatched.extend("prompt" for chunk in chunks if chunk.last)
        return run_prefill(chunks, masks)

    monkeypatch.setattr(engine._runner, "round", counted_round)
    monkeypatch.setattr(engine._runner, "prefill", counted_prefill)
    rng = np.random.default_rng(5)
    drive_waves(engine, random_requests(rng, 32), rng)
    assert len(reads) == len(dispatched) > 50
    assert max(reads) <= 4 * 4 * (K + 3)
    reads.clear()
    float(jax.numpy.ones(1)[0])
    assert reads, "the counter sees nothing"


def test_the_state_is_donated_and_the_pools_stay_where_they_are(engine: Engine) -> None:
    engine.add(Request("x", [1, 2, 3], SamplingParams(max_tokens=30)))
    engine.step()
    for _ in range(3):
        before = engine._runner.executor.state
        arrays = [*before.target_pools, *jax.tree.leaves(before.logit_controls)]
        places = [array.unsafe_buffer_pointer() for array in arrays]
        engine.step()
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before))
        after = engine._runner.executor.state
        arrays = [*after.target_pools, *jax.tree.leaves(after.logit_controls)]
        assert [array.unsafe_buffer_pointer() for array in arrays] == places


@pytest.mark.usefixtures("engine")
def test_warmup_names_every_program_before_it_compiles() -> None:
    rounds = ["round of 1", "round of 4", "full round of 1", "full round of 4"]
    names = ["prefill", "full prefill", "scoring prefill", *rounds]
    if chooses_in_kernel():
        names[3:3] = ["argmax prefill"]
        names += ["argmax round of 1", "argmax round of 4"]
    steps = enumerate([*names, "ready"])
    assert WARMED == [(name, done, len(names)) for done, name in steps]
