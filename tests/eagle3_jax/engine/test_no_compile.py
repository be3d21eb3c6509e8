"""After warmup nothing compiles, little moves, and the state is updated in place."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest
from driving import Answer, sizes
from toy_tokenizer import ToyTokenizer

from eagle3_jax.engine import Engine, Request
from eagle3_jax.engine.chunk_plan import ChunkPlan
from eagle3_jax.engine.programs.output import ProgramOutput
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.speculative.head_choice import chooses_in_kernel

COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"
TRACE_EVENT = "/jax/core/compile/jaxpr_trace_duration"
K = 3
LOGPROBS: list[dict[str, Any]] = [{}, {"logprobs": 4}, {"logprobs": 0, "prompt_logprobs": 20}]


class Compilations:
    """Names of compile and trace events since the last reset."""

    def __init__(self) -> None:
        self.events: list[str] = []
        jax.monitoring.register_event_duration_secs_listener(self._hear)

    def _hear(self, event: str, duration_secs: float, **_: Any) -> None:
        if event in (COMPILE_EVENT, TRACE_EVENT):
            self.events.append(event)


@pytest.fixture(scope="module")
def compilations() -> Compilations:
    return Compilations()


def made(target: Target, draft: Eagle3Draft, **fields: Any) -> Engine:
    """An engine that is ready."""
    config = sizes(K, batch_buckets=(1, 4), **fields)
    engine = Engine(target, draft, config, tokenizer=ToyTokenizer(), eos_token_ids=(7,))
    engine.warmup()
    return engine


@pytest.fixture
def engine(target: Target, draft: Eagle3Draft) -> Engine:
    return made(target, draft)


def test_pages_that_go_to_host_memory_and_disk_and_come_back_compile_nothing(
    target: Target, draft: Eagle3Draft, compilations: Compilations, tmp_path: Path
) -> None:
    """Within an engine, and by the one that finds them on the disk."""
    kept = {"kv_offloading_dir": str(tmp_path), "kv_offloading_dir_bytes": 2**30}
    for before in (None, "disk"):
        engine = made(target, draft, kv_offloading_bytes=2**24, **kept)
        compilations.events.clear()
        for _ in serve(engine, traffic()):
            pass
        assert compilations.events == []
        assert engine.stats().cached.host > 0 and engine.stats().num_preemptions > 0
        assert (engine.stats().cached.disk > 0) == (before == "disk")
        engine.close()


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


def traffic() -> list[Request]:
    """Greedy and sampled, every option, prompts of one to many chunks; too long for the pages."""
    options: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.6, "top_p": 0.9},
        {"temperature": 1.0, "min_p": 0.1, "top_k": 20, "min_tokens": 12},
        {"temperature": 0.0, "stop": ["ab", "bab"], "stop_token_ids": [11, 12]},
        {"temperature": 1.3, "seed": 2**63, "ignore_eos": True},
        {"logit_bias": {5: 3.0}, "repetition_penalty": 1.3, "num_speculative_tokens": 1},
        {"bad_words_ids": [[3], [4, 5]], "presence_penalty": 0.5, "frequency_penalty": -0.5},
        {"allowed_token_ids": range(40), "stop_token_ids": range(20, 60), "min_tokens": 5},
    ]
    prompts = [[2 * (i % 5) + 1] * (1 + 4 * (i % 6)) for i in range(3 * len(options))]
    return [
        Request(f"{i}", prompts[i], SamplingParams(max_tokens=36, **chosen))
        for i, chosen in enumerate(options * 3)
    ]


def serve(engine: Engine, requests: list[Request]) -> Iterator[dict[str, Answer]]:
    """Requests two at a time, every fifth cancelled on the way; yields after each step."""
    pending, answers = list(requests), {}
    while pending or engine.has_work:
        for request in pending[:2]:
            engine.add(request)
        pending = pending[2:]
        for output in engine.step():
            answers.setdefault(output.request_id, Answer()).outputs.append(output)
        for request_id, answer in answers.items():
            if int(request_id) % 5 == 4 and len(answer.token_ids) > 5:
                engine.cancel(request_id)
        yield answers


def test_mixed_traffic_compiles_nothing_and_moves_no_array_by_itself(
    engine: Engine, compilations: Compilations
) -> None:
    asked = [
        replace(r, sampling=replace(r.sampling, **LOGPROBS[i % 3])) for i, r in enumerate(traffic())
    ]
    compilations.events.clear()
    with jax.transfer_guard("disallow"):
        *_, answers = serve(engine, asked)
    assert compilations.events == []
    assert engine.stats().num_preemptions > 0 and engine.stats().prefix_cache_hits > 0
    reasons = {answer.finish[0] for answer in answers.values()}
    assert reasons == {"stop", "length", "abort"}
    assert len(answers) == len(traffic())
    jax.jit(lambda x: x + 41)(1.0)
    assert COMPILE_EVENT in compilations.events, "the listener hears nothing"


def test_each_program_that_has_news_is_read_once_and_the_read_is_small(
    engine: Engine, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report is four bytes a number, k + 3 numbers a row of a round: nobody asks for logprobs."""
    dispatched: list[str] = []
    run_round, run_prefill = engine._runner.round, engine._runner.prefill

    def counted_round(members: Sequence[Any], drafts: int) -> ProgramOutput:
        dispatched.append("round")
        return run_round(members, drafts)

    def counted_prefill(chunks: Sequence[ChunkPlan], masks: Any = None) -> ProgramOutput:
        dispatched.extend("prompt" for chunk in chunks if chunk.last)
        return run_prefill(chunks, masks)

    monkeypatch.setattr(engine._runner, "round", counted_round)
    monkeypatch.setattr(engine._runner, "prefill", counted_prefill)
    for _ in serve(engine, traffic()):
        pass
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


def test_warmup_names_every_program_before_it_compiles(target: Target, draft: Eagle3Draft) -> None:
    seen: list[tuple[str, int, int]] = []
    Engine(target, draft, sizes(K, batch_buckets=(1, 4))).warmup(lambda *step: seen.append(step))
    rounds = ["round of 1", "round of 4", "full round of 1", "full round of 4"]
    names = ["prefill", "full prefill", "scoring prefill", *rounds]
    if chooses_in_kernel():
        names[3:3] = ["argmax prefill"]
        names += ["argmax round of 1", "argmax round of 4"]
    steps = enumerate([*names, "ready"])
    assert seen == [(name, done, len(names)) for done, name in steps]
