"""Kimi-K2.5's positions up to 262,143 beside transformers', on random weights of small sizes."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from deepseek import random_deepseek, save
from driving import drive
from flax import nnx
from oracle_files import ORACLES
from tiny import HIDDEN, VOCAB
from tolerances import FLOAT32_ATOL
from transformers import DeepseekV3ForCausalLM
from wide_pair import DRAFTS

from convert import load_target
from eagle3_jax.cache import view_pages
from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.layers.rope import inverse_frequencies
from eagle3_jax.mesh import make_mesh, shard
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.sampling.params import SamplingParams

PUBLISHED = json.loads((ORACLES / "published/kimi-k2.5.config.json").read_text())["text_config"]
LAST = PUBLISHED["max_position_embeddings"] - 1
JUMPS = [
    [0, 1, 2, 4095, 4096, 4097, 32_767, 65_535, 65_536, 131_071, 200_003, LAST - 1, LAST],
    [LAST, 0, 131_072, 17, 262_000, 17, 99_999, 1, LAST - 1, 70_000, 70_001, LAST, 3],
]
"""Positions of two sequences: one that goes up to the last, and one back and forth."""
ANSWER = 32
SIZES = {"vocab_size": VOCAB, "hidden_size": HIDDEN, "n_routed_experts": 8}
SIZES |= dict.fromkeys(("num_attention_heads", "num_key_value_heads"), 4)
"""Of which two devices have halves, and for which there is a draft."""
Models = tuple[DeepseekV3ForCausalLM, Target]


def power_of_each(exponents: torch.Tensor, base: float) -> torch.Tensor:
    """`base ** exponents`, each rounded once from float64. torch's own, of 32 numbers together, has
    the 6th of Kimi's wavelengths 0.53 units in the last place off, which turns it by 0.004 radians
    at the last position; its power of one number is this."""
    return torch.tensor([base**exponent for exponent in exponents.tolist()])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """The published rotations, all other sizes small."""
    return made(tmp_path_factory.mktemp("long"), qk_rope_head_dim=PUBLISHED["qk_rope_head_dim"])


def made(directory: Path, **sizes: Any) -> Models:
    """transformers' model and ours with Kimi-K2.5's YaRN to 262,144 positions."""
    rope = PUBLISHED["rope_scaling"] | {"rope_theta": PUBLISHED["rope_theta"], "rope_type": "yarn"}
    sizes = SIZES | sizes | {"max_position_embeddings": LAST + 1, "q_lora_rank": 24}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "__rpow__", power_of_each)
        theirs = random_deepseek(rope_parameters=rope, **sizes)
    return theirs, load_target(save(theirs, directory), dtype="float32")


def random_ids(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, VOCAB, shape)


def test_frequencies_are_those_of_transformers_bit_for_bit(models: Models) -> None:
    theirs, target = models
    ours = inverse_frequencies(target.config.rope, target.config.rope_dim)
    np.testing.assert_array_equal(ours, theirs.model.rotary_emb.inv_freq.numpy())


def logits_at(theirs: DeepseekV3ForCausalLM, ids: np.ndarray, positions: Any) -> np.ndarray:
    """transformers' logits. Without a mask it would take jumps for ends of packed sequences."""
    mask = torch.ones(ids.shape)
    with torch.no_grad():
        out = theirs(torch.from_numpy(ids), mask, position_ids=torch.tensor(positions))
    return out.logits.numpy()


@pytest.mark.parametrize("cached", [False, True], ids=["whole", "paged"])
def test_logits_are_those_of_transformers_at_positions_that_jump(
    models: Models, cached: bool
) -> None:
    theirs, target = models
    ids, positions = random_ids(*np.shape(JUMPS)), jnp.asarray(JUMPS)
    if cached:
        ours = paged_logits(target, ids, positions, [10, 1, 1, 1], page_size=4, pages=4)
    else:
        ours = whole_logits(target, jnp.asarray(ids), positions)
    expected = logits_at(theirs, ids, JUMPS)
    assert np.abs(expected - logits_at(theirs, ids, np.minimum(JUMPS, LAST - 1))).max() > 0.01
    np.testing.assert_allclose(ours, expected, rtol=0, atol=FLOAT32_ATOL)


@jax.jit
def whole_logits(target: Target, ids: jax.Array, positions: jax.Array) -> jax.Array:
    return target.logits(target(ids, positions, ())[0])


def paged_logits(
    target: Target,
    ids: np.ndarray,
    positions: jax.Array,
    chunks: Sequence[int],
    *,
    page_size: int,
    pages: int,
) -> np.ndarray:
    """Chunk after chunk of so many rows, through pages of NaN; slots count rows, whatever they are
    at. Page tables have so many `pages`."""
    batch, rows = ids.shape
    count = -(-rows // page_size)
    used = np.random.default_rng(1).permutation(batch * count).reshape(batch, count) + 1
    table = jnp.asarray(np.pad(used, ((0, 0), (0, pages - count))))
    shape = (batch * count + 1, page_size)
    pools = tuple(jnp.full((*shape, *row), jnp.nan) for row in target.pool_rows)

    @jax.jit
    def call(ids: jax.Array, at: jax.Array, slots: jax.Array, pools: Any) -> Any:
        view = view_pages(table, slots, jnp.ones(slots.shape, bool), page_size)
        hidden, _, pools = target(ids, at, (), pools, view)
        return target.logits(hidden), pools

    logits, start = [], 0
    for size in chunks:
        part = np.s_[:, start : start + size]
        slots = jnp.broadcast_to(jnp.arange(start, start + size), (batch, size))
        of_rows, pools = call(jnp.asarray(ids[part]), positions[part], slots, pools)
        logits.append(np.asarray(of_rows))
        start += size
    return np.concatenate(logits, axis=1)


@dataclass(frozen=True)
class Answered:
    """logprobs: of each of the prompt's tokens behind the first."""

    logprobs: np.ndarray
    token_ids: list[int]
    accepted: list[int]


def answered(
    target: Target, draft: Eagle3Draft | None, prompt: list[int], *, parts: int = 1, most: int = 1
) -> Answered:
    """By an engine of all 262,144 positions, chunk by chunk; greedy, so many tokens."""
    shared: Any = {"page_size": 64 // parts, "decode_context_parallel_size": parts}
    config = EngineConfig(3 if draft else 0, LAST + 1, 1, prefill_chunk=512, **shared)
    engine = Engine(target, draft, config, eos_token_ids=())
    sampling = SamplingParams(temperature=0.0, max_tokens=most, prompt_logprobs=0)
    answer = drive(engine, [Request("long", prompt, sampling)])["long"]
    told = next(found for output in answer.outputs if (found := output.prompt_logprobs))
    rows = zip(prompt[1:], told[1:], strict=True)
    logprobs = np.array([row[token].logprob for token, row in rows if row])
    return Answered(logprobs, answer.token_ids, answer.accepted)


def logits_of(theirs: DeepseekV3ForCausalLM, ids: Sequence[int] | np.ndarray) -> torch.Tensor:
    """In one pass over all of it [tokens, vocab]; no two of its routes may be ties."""
    with torch.no_grad():
        return theirs(torch.tensor(ids)[None]).logits[0]


def logprobs_of(logits: torch.Tensor, prompt: Sequence[int] | np.ndarray) -> np.ndarray:
    rest = torch.tensor(prompt[1:])[:, None]
    return logits[: len(rest)].log_softmax(-1).gather(1, rest)[:, 0].numpy()


def check_near(found: np.ndarray, expected: np.ndarray, what: str) -> None:
    assert found.shape == expected.shape
    print(f"{what}: at most {np.abs(found - expected).max():.2e} apart")
    np.testing.assert_allclose(found, expected, rtol=0, atol=FLOAT32_ATOL)


def long_prompt(pytestconfig: pytest.Config) -> np.ndarray:
    return random_ids(16_384 if pytestconfig.getoption("long") else 1_024)


def test_a_long_prompt_has_the_logits_that_transformers_gives_it(
    models: Models, pytestconfig: pytest.Config
) -> None:
    """Every token and position is compared, chunk after chunk through pages of NaN."""
    theirs, target = models
    prompt = long_prompt(pytestconfig)
    positions, chunks = jnp.arange(len(prompt))[None], [512] * (len(prompt) // 512)
    every = (LAST + 1) // 64  # pages of all 262,144 positions
    (found,) = paged_logits(target, prompt[None], positions, chunks, page_size=64, pages=every)
    check_near(found, logits_of(theirs, prompt).numpy(), f"logits of {len(prompt)} tokens")


@pytest.mark.long
def test_a_prompts_logprobs_and_an_answer_behind_it_are_those_of_transformers(
    models: Models, pytestconfig: pytest.Config
) -> None:
    """With a draft, and where two devices divide the context of both, which accepts the same
    drafts."""
    theirs, target = models
    prompt, draft = long_prompt(pytestconfig).tolist(), DRAFTS["latent"](target)
    found = {1: answered(target, draft, prompt, most=ANSWER)}
    target = nnx.clone(target)
    draft, mesh = DRAFTS["latent"](target), make_mesh(2, devices=jax.devices()[:2])
    shard(target, mesh)
    shard(draft, mesh)
    found[2] = answered(target, draft, prompt, parts=2, most=ANSWER)
    tokens, accepted = found[1].token_ids, found[1].accepted
    logits = logits_of(theirs, prompt + tokens)
    best = logits[len(prompt) - 1 : -1].topk(2)
    assert (best.values[:, 0] - best.values[:, 1]).min() > 10 * FLOAT32_ATOL, "a tie"
    assert len(tokens) == ANSWER and sum(accepted), "no draft was accepted"
    for parts, one in found.items():
        check_near(one.logprobs, logprobs_of(logits, prompt), f"{len(prompt)} tokens, D = {parts}")
        assert one.token_ids == best.indices[:, 0].tolist()
        assert one.accepted == accepted


@pytest.mark.long
def test_so_has_the_longest_prompt(tmp_path: Path) -> None:
    """262,143 tokens, in one layer with one head; of heads of equal sizes torch makes no square."""
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "v_head_dim": 16}
    sizes = {"num_hidden_layers": 1, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8}
    theirs, target = made(tmp_path, **heads, **sizes, kv_lora_rank=8)
    prompt = random_ids(LAST)
    found = answered(target, None, prompt.tolist()).logprobs
    check_near(found, logprobs_of(logits_of(theirs, prompt), prompt), f"{LAST} tokens")
