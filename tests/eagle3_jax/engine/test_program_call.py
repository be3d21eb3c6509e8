"""Plans as bytes: what one process packs is what another runs."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from driving import drive, sizes
from spelling_tokenizer import EOS, SpellingTokenizer

from eagle3_jax.engine import Engine, Request
from eagle3_jax.engine.programs.processes.call import CallFormat, ProgramCall
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.kimi import KimiTarget
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.sampling.structured_outputs import StructuredOutputs


class Recorder:
    """A peer that keeps what it is sent."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []

    def await_compiled(self) -> None: ...

    def send(self, message: bytes) -> None:
        self.messages.append(message)


@pytest.fixture(scope="module")
def engines(target: KimiTarget, draft: Eagle3Draft) -> Iterator[tuple[Engine, Recorder, Engine]]:
    """One that leads, what it sends, and one that follows."""
    recorder, shared = Recorder(), {"tokenizer": SpellingTokenizer(), "eos_token_ids": (EOS,)}
    leading = Engine(target, draft, sizes(3), peers=recorder, **shared)
    assert leading.grammars, "llguidance makes the halves of a round"
    yield leading, recorder, Engine(target, draft, sizes(3), **shared)


def requests() -> list[Request]:
    """Whole rounds, and then a grammar's halves."""
    options: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {},
        {"structured_outputs": StructuredOutputs(choice=("ab", "ba"))},
    ]
    return [
        Request(f"{i}", [3 * i + j for j in range(9)], SamplingParams(seed=i, **chosen))
        for i, chosen in enumerate(options)
    ]


def test_a_follower_reaches_the_state_of_its_leader_bit_for_bit(
    engines: tuple[Engine, Recorder, Engine],
) -> None:
    leading, recorder, following = engines
    drive(leading, requests(), arrival_gap=3)
    following.follow(recorder.messages)
    kinds = {program.kind.removeprefix("argmax ") for program in leading._runner.executor.compiled}
    assert kinds >= {"prefill", "round", "propose", "verify"}
    states = leading._runner.executor.state, following._runner.executor.state
    for ours, theirs in zip(*map(jax.tree.leaves, states), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_plan_is_its_program_and_the_bytes_of_its_inputs(
    engines: tuple[Engine, Recorder, Engine],
) -> None:
    executor = engines[0]._runner.executor
    format = CallFormat(executor.programs, executor.input_shapes)
    for program in executor.programs:
        shapes = executor.input_shapes(program)
        inputs = jax.tree.map(lambda s: np.full(s.shape, 1, s.dtype), shapes)
        message = format.encode(ProgramCall(program, inputs))
        nbytes = sum(leaf.nbytes for leaf in jax.tree.leaves(inputs))
        assert len(message) == 2 + nbytes
        decoded = format.decode(message)
        assert decoded.program == program
        jax.tree.map(np.testing.assert_array_equal, decoded.inputs, inputs)
        with pytest.raises(ValueError, match=f"takes {2 + nbytes} bytes, got {3 + nbytes}"):
            format.decode(message + b"x")
    with pytest.raises(ValueError, match=r"names program 513 of"):
        format.decode(b"\x01\x02")
