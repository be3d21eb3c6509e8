"""Features for training a draft are those of serving, bit for bit."""

from dataclasses import replace

import numpy as np
import pytest
from flax import nnx
from oracle_files import ORACLES
from sweeps import sweep
from tiny import DRAFT, LLAMA, MINIMAX, TARGET, tiny_target

from convert import load_target
from eagle3_jax.engine import EngineConfig
from eagle3_jax.engine.programs.executor import Executor
from eagle3_jax.engine.programs.messages import ProgramCall
from eagle3_jax.engine.programs.packing import empty_chunk
from eagle3_jax.engine.programs.program import Program, ProgramKind
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.training.batches import packed_batches
from eagle3_jax.training.features import feature_pass
from eagle3_jax.training.packing import Sample

CHUNK = 16
PLAIN = {"kimi": TARGET, "minimax": MINIMAX, "llama": LLAMA}
QUANTISED = ("kimi_int4_ct", "kimi_mxfp4_quark", "kimi_w4a8_quark", "minimax_fp8block")


def the_target(name: str) -> Target:
    return tiny_target(config=PLAIN[name]) if name in PLAIN else load_target(ORACLES / name)


def served_feature(executor: Executor, config: EngineConfig, ids: list[int]) -> np.ndarray:
    """The features of a prompt's last token, as the engine's prefill leaves them in its slot."""
    for start in range(0, len(ids), CHUNK):
        part = ids[start : start + CHUNK]
        last = start + len(part) == len(ids)
        chunk = replace(
            empty_chunk(config),
            tokens=np.array([*part, *[0] * (CHUNK + 1 - len(part))], np.int32),
            page_table=np.arange(1, config.pages_per_seq + 1, dtype=np.int32)[None],
            start=np.array(start, np.int32),
            length=np.array(len(part), np.int32),
            last=np.array(last),
            slot=np.array(0, np.int32),
            max_len=np.array(60, np.int32),
        )
        executor.run(ProgramCall(Program(ProgramKind.PREFILL), (chunk,)))
    return np.asarray(executor.state.slots.aux_hidden[0, 0])


def any_draft(target: Target, aux_layer_ids: tuple[int, ...]) -> Eagle3Draft:
    vocab, hidden = target.config.vocab_size, target.config.hidden_size
    widths = {"hidden_size": hidden, "target_hidden_size": hidden, "aux_layer_ids": aux_layer_ids}
    config = replace(DRAFT, vocab_size=vocab, draft_vocab_size=vocab, **widths)
    return Eagle3Draft(config, rngs=nnx.Rngs(0))


OPTIMISED = [pytest.param("kimi", marks=pytest.mark.optimised)]


@pytest.mark.parametrize("name", [*sweep([*PLAIN, *QUANTISED], ["minimax_fp8block"]), *OPTIMISED])
def test_features_are_servings_to_the_bit(name: str) -> None:
    """Aux states of inner layers, and what leaves the last one."""
    target = the_target(name)
    last = target.config.num_hidden_layers
    aux, inner = (0, 1, last - 1, last), 3 * target.config.hidden_size
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 90, size).tolist() for size in (5, 37, 3, 18, 16, 1)]
    samples = [Sample(ids, [True] * len(ids)) for ids in prompts]
    batch = next(packed_batches(samples, rows=2, length=48))
    found = feature_pass(target, aux, CHUNK)(batch)
    config = EngineConfig(max_model_len=60, max_num_seqs=1, prefill_chunk=CHUNK)
    executor = Executor(target, any_draft(target, aux), config)
    ends = np.diff(batch.segments, axis=1, append=0) != 0
    for row, end in zip(*np.nonzero(ends & (batch.segments > 0)), strict=True):
        start = end - batch.positions[row, end]
        for size in {1, (end - start + 1) // 2, end - start + 1} - {0}:
            ids = batch.token_ids[row, start : start + size].tolist()
            served = served_feature(executor, config, ids)
            at = row, start + size - 1
            np.testing.assert_array_equal(found.aux[at], served)
            np.testing.assert_array_equal(found.hidden[at], served[inner:])
