"""Engines in several processes: one drives another's devices, or follows its plans bit for bit."""

import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from driving import Answer, drive, sizes
from spelling_tokenizer import EOS, SpellingTokenizer
from sweeps import sweep
from tiny import VOCAB
from traffic import drive_waves, random_requests

from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.engine.programs.messages import CallFormat, PendingQuery, ProgramCall
from eagle3_jax.engine.programs.remote import EngineInfo, RemoteProfiler
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.kimi import KimiTarget
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.sampling.structured_outputs import StructuredOutputs

ANSWER_S = 60.0
SHARED: dict[str, Any] = {"tokenizer": SpellingTokenizer(), "eos_token_ids": (EOS,)}
TREE = {"eagle_topk": 2, "num_draft_tokens": 5}
CONFIGS = {
    "chains": sizes(3),
    "trees": sizes(2, **TREE),
    "exact": sizes(3, exact=True),
    "host memory": sizes(3, kv_offloading_bytes=10_000_000),
}


class OtherThread:
    """Devices of an engine that follows in a thread of its own."""

    def __init__(self, following: Engine):
        self.info: EngineInfo = following.info
        self.questions = 0
        self._messages: queue.SimpleQueue[bytes | PendingQuery | None] = queue.SimpleQueue()
        follow = lambda: following.follow(iter(self._messages.get, None))  # noqa: E731
        self._thread = threading.Thread(target=follow, daemon=True)
        self._thread.start()

    def await_compiled(self) -> None: ...

    def send(self, message: bytes) -> None:
        self._messages.put(message)

    def ask(self, question: bytes) -> Callable[[], bytes]:
        self.questions += 1
        answers: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()
        self._messages.put(PendingQuery(question, answers.put))

        def wait() -> bytes:
            answer = answers.get(timeout=ANSWER_S)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return wait

    def stop(self) -> None:
        self._messages.put(None)
        self._thread.join(ANSWER_S)


@pytest.fixture(params=sweep(CONFIGS, ["host memory"]))
def driven(
    request: pytest.FixtureRequest, target: KimiTarget, draft: Eagle3Draft
) -> Iterator[tuple[Engine, Engine, OtherThread]]:
    """One that drives, one that is alone, and the other's devices."""
    config: EngineConfig = CONFIGS[request.param]
    devices = OtherThread(Engine(target, draft, config, **SHARED))
    driving = Engine(target, draft, devices.info.configure(config), peers=devices, **SHARED)
    yield driving, Engine(target, draft, config, **SHARED), devices
    devices.stop()


def asked_for() -> list[Request]:
    """Log-probabilities of answers and prompts, a grammar's halves of rounds, a long prompt."""
    options: list[dict[str, Any]] = [
        {"logprobs": 3},
        {"prompt_logprobs": 2, "temperature": 0.0},
        {"structured_outputs": StructuredOutputs(choice=("ab", "ba"))},
    ]
    return [
        Request(f"own {i}", [(5 * i + j) % VOCAB for j in range(30)], SamplingParams(seed=i, **o))
        for i, o in enumerate(options)
    ]


def told(answer: Answer) -> tuple[Any, ...]:
    """All that its client sees, however it was cut."""
    logprobs = [entry for output in answer.outputs for entry in output.logprobs]
    return answer.token_ids, answer.text, logprobs, answer.outputs[-1].prompt_logprobs


def test_answers_are_those_of_one_process(driven: tuple[Engine, Engine, OtherThread]) -> None:
    driving, alone, devices = driven
    requests = random_requests(np.random.default_rng(3), 32)
    ours, theirs = (drive_waves(e, requests, np.random.default_rng(4)) for e in (driving, alone))
    answers = ours.answers | drive(driving, asked_for())
    expected = theirs.answers | drive(alone, asked_for())
    whole = answers.keys() - ours.cancelled - theirs.cancelled
    assert len(whole) > 20
    assert {n: told(answers[n]) for n in whole} == {n: told(expected[n]) for n in whole}
    assert driving.stats().num_accepted_tokens and devices.questions
    if driving.config.kv_offloading_bytes:
        assert driving.stats().cached.host and alone.stats().cached.host


def test_a_trace_is_of_the_process_with_devices(
    target: KimiTarget, draft: Eagle3Draft, tmp_path: Path
) -> None:
    devices = OtherThread(Engine(target, draft, CONFIGS["chains"], **SHARED))
    profiler = RemoteProfiler(devices.ask)
    profiler.start_trace(str(tmp_path))
    with pytest.raises(RuntimeError, match="Only one profile may be run at a time"):
        profiler.start_trace(str(tmp_path))
    profiler.stop_trace()
    devices.stop()
    assert list(tmp_path.rglob("*.xplane.pb"))


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
    recorder = Recorder()
    leading = Engine(target, draft, sizes(3), peers=recorder, **SHARED)
    assert leading.grammars, "llguidance makes the halves of a round"
    yield leading, recorder, Engine(target, draft, sizes(3), **SHARED)


def test_a_follower_reaches_the_state_of_its_leader_bit_for_bit(
    engines: tuple[Engine, Recorder, Engine],
) -> None:
    leading, recorder, following = engines
    plain = Request("plain", [3, 1, 4], SamplingParams(temperature=0.0))
    drive(leading, [plain, *asked_for()], arrival_gap=3)
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
