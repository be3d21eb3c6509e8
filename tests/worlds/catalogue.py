"""The worlds: all engine settings that users can choose, combined in few model pairs."""

import logging
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import replace
from functools import cache, partial
from itertools import count
from typing import Any

import jax
from driving import sizes
from flax import nnx
from grammar_traffic import grammar_requests
from image_traffic import image_requests, note_cuts
from setups import ALL, Setup, pair_on_devices, pair_on_replicas
from shared_pair import pair_on_one_device, shared_draft, shared_target
from spelling_tokenizer import EOS, SpellingTokenizer
from tiny import LLAMA, MINIMAX, TARGET, reduced_draft, tiny_draft, tiny_target
from tiny_vision import PAD, VISION, drawn
from traffic import random_requests, without_logits
from wide_pair import DRAFTS, minimax_of_two_kv_heads, wide_minimax, wide_target
from world import Models, World

from eagle3_jax.config import TargetConfig
from eagle3_jax.engine import Engine, EngineConfig
from eagle3_jax.engine.choose_k import ChosenK
from eagle3_jax.mesh import make_mesh, shard
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from pallas_kernels import dispatch

MakeDraft = Callable[[Target], Eagle3Draft]
EMPTY: Mapping[str, Any] = {}

K = 3
TREE: dict[str, Any] = {"eagle_topk": 3, "num_draft_tokens": 9}
LOOKUP: dict[str, Any] = {
    "num_lookup_tokens": 6,
    "prompt_lookup_min": 1,
    "prompt_lookup_max": 3,
}
FLOAT8: dict[str, Any] = {"kv_cache_dtype": "fp8", "kv_cache_scale": 0.05}


class Script:
    """A k chooser that cycles through k = 0..most in a fixed order with every transition.

    Neighbours verify different numbers of drafts.
    """

    ORDER = (3, 0, 0, 2, 0, 1, 3, 1, 0, 3, 2, 1, 0, 0, 0)

    def __init__(self, most: int) -> None:
        self.most, self.rounds = most, count()

    def choose(self, members: Sized) -> ChosenK:
        nth = next(self.rounds)
        k = min(self.most, self.ORDER[nth % len(self.ORDER)])
        return ChosenK(k, limits=tuple((nth + i) % (k + 1) for i in range(len(members))))

    def observe_time(self, choice: ChosenK, seconds: float) -> None: ...

    def observe_acceptance(self, sequence: object, verified: int, accepted: int) -> None: ...


def follow_the_script(engine: Engine) -> None:
    """Make the engine choose k by a new script."""
    script: Any = Script(engine._num_drafts)
    engine._chooser = script


@cache
def _tiny_target() -> Target:
    return shared_target()


@cache
def _tiny_models(draft: str) -> Models:
    target = _tiny_target()
    if draft == "none":
        return Models(target, None)
    return Models(
        target, reduced_draft(target) if draft == "reduced" else shared_draft(draft, target)
    )


@cache
def _tiny_alone() -> Models:
    return Models(pair_on_one_device("grouped")[0], None)


def tiny(name: str, config: EngineConfig, draft: str = "grouped", **options: Any) -> World:
    """Make a world of the tests' shared pair."""
    options = {"requests": partial(random_requests, typical=True), **options}
    return World(name, partial(_tiny_models, draft), _tiny_alone, config, **options)


def of_config(name: str, target: TargetConfig, make_draft: MakeDraft, **options: Any) -> World:
    """Make a world of another target on one device."""

    @cache
    def models() -> Models:
        made = tiny_target(config=target)
        return Models(made, make_draft(made))

    return World(name, models, models_without_draft(models), sizes(K), program="targets", **options)


def models_without_draft(models: Callable[[], Models]) -> Callable[[], Models]:
    return lambda: models()._replace(draft=None)


@cache
def _wide_alone(format: str) -> Models:
    return Models(wide_target(format), None)


def on_devices(
    name: str,
    make: Callable[[], Sequence[Any]],
    alone: Callable[[], Models],
    config: EngineConfig,
    **options: Any,
) -> World:
    """Make a world of models that `make` places on devices."""
    options = {"program": "devices", **options}
    return World(name, lambda: Models(*make()), alone, config, **options)


def of_setup(name: str, setup: Setup, config: EngineConfig, **options: Any) -> World:
    """Make a world of the wide pair on the devices of `setup`."""
    make, alone = partial(pair_on_devices, setup), partial(_wide_alone, setup.format)
    return on_devices(name, make, alone, config, **options)


def sharing_heads(
    name: str,
    config: EngineConfig,
    devices: int = 4,
    *,
    by_expert: bool = False,
    target: Callable[[], Target] = minimax_of_two_kv_heads,
    **options: Any,
) -> World:
    """Make a world of a target and a draft with two KV heads on more than two devices."""

    def make() -> tuple[Target, Eagle3Draft]:
        whole = target()
        pair = whole, DRAFTS["of two KV heads"](whole)
        mesh = make_mesh(devices, enable_expert_parallel=by_expert)
        for model in pair:
            shard(model, mesh)
        return pair

    return on_devices(name, make, cache(lambda: Models(target(), None)), config, **options)


def replicas(
    name: str,
    count: int,
    devices: int,
    draft: str,
    format: str = "float32",
    traffic: Mapping[str, Any] = EMPTY,
    **changes: Any,
) -> World:
    """Make a world of `count` replicas, each with pages for little more than one full sequence."""
    slots = {"max_num_seqs": 8 // count, "batch_buckets": (8 // count,), "num_pages": 18}
    config = sizes(K, data_parallel_size=count, **(slots | changes))
    make = partial(pair_on_replicas, count, devices, draft, format)
    return on_devices(name, make, partial(_wide_alone, format), config, **traffic)


def seeing(name: str, devices: int, config: EngineConfig, **options: Any) -> World:
    """Make a world of the tiny pair with vision; several devices split the images of a call."""

    @cache
    def whole() -> Models:
        target = tiny_target(config=replace(TARGET, media_placeholder_token_id=PAD))
        return Models(target, tiny_draft(target), drawn(VISION))

    def make() -> Sequence[Any]:
        if devices == 1:
            return whole()
        models: list[Any] = [nnx.clone(model) for model in whole()]
        mesh = make_mesh(devices, devices=jax.devices()[:devices])
        for model in models:
            shard(model, mesh)
        return models

    options |= {"requests": image_requests, "prepare": note_cuts, "count": 16}
    return on_devices(name, make, models_without_draft(whole), config, **options)


RAN: set[str] = set()
"""Log lines of the engine with interpreted kernels, which name the kernel of each operation."""


def note_operations(_: Engine) -> None:
    """Record the log lines about operations in RAN."""
    if not RAN:
        dispatch._log_choice.cache_clear()  # Each line is logged only once otherwise.
        dispatch._log.setLevel(logging.INFO)
        dispatch._log.addFilter(lambda record: RAN.add(record.getMessage()) or True)


def divided(parts: int, **changes: Any) -> EngineConfig:
    """Return a config with pages of 4 tokens, for little more than one full sequence."""
    shared = {"page_size": 4 // parts, "num_pages": 20, "decode_context_parallel_size": parts}
    return sizes(K, **(shared | changes))


SPELLING: dict[str, Any] = {
    "requests": grammar_requests,
    "tokenizer": SpellingTokenizer(),
    "eos": (EOS,),
}
PARTS: dict[str, Any] = {"decode_context_parallel_size": 2}
BY_BATCH: dict[str, Any] = {"num_speculative_tokens_per_batch_size": ((1, 2, 3), (3, 4, 0))}
"""Rounds with a grammar keep their k, whatever it says."""
LATENT = Setup(4, False, "latent", "float32", True)
GROUPED = Setup(4, False, "grouped", "float32", True)
TWO = Setup(2, False, "latent", "float32", True)
SMALL = {"page_size": 2, "num_pages": 60}
FEW = [
    tiny("chain", sizes(K)),
    tiny(
        "any order of k, reduced draft",
        sizes(2, adaptive=True),
        "reduced",
        prepare=follow_the_script,
    ),
    tiny("lookup", sizes(K, **LOOKUP), "reduced"),
    tiny("host memory", sizes(K, kv_offloading_bytes=10_000_000), repeats=False),
    tiny("grammar and tree", sizes(K, **TREE), repeats=False, **SPELLING),
    tiny(
        "exact float8",
        sizes(K, exact=True, **FLOAT8),
        "latent",
        optimised=True,
        requests=random_requests,
    ),
    tiny(
        "interpreted kernels",
        sizes(K, kernels="pallas"),
        requests=without_logits,
        prepare=note_operations,
    ),
    of_config("minimax", MINIMAX, tiny_draft),
    of_setup("divided contexts", LATENT, divided(4)),
    replicas("2 replicas, exact", 2, 1, "latent", exact=True),
    seeing("seeing, draft too, 2 devices", 2, sizes(K, mm_draft_embedding="target")),
]
SWEEP = [
    tiny("lookup alone", sizes(0, **LOOKUP), "none"),
    tiny("lookup, exact", sizes(K, exact=True, **LOOKUP), "latent"),
    tiny("grammar, k by batch", sizes(K, **BY_BATCH), repeats=False, **SPELLING),
    tiny("lookup and grammar", sizes(K, **LOOKUP), repeats=False, **SPELLING),
    tiny("lookup, host memory", sizes(K, kv_offloading_bytes=10_000_000, **LOOKUP), repeats=False),
    of_setup("lookup, 2 parts", TWO, divided(2, **LOOKUP)),
    replicas("2 replicas, lookup", 2, 1, "latent", **LOOKUP),
    seeing("seeing, lookup, exact", 1, sizes(K, exact=True, **LOOKUP)),
    tiny("tree", sizes(K, **TREE)),
    tiny("k = 1", sizes(1, page_size=16, num_pages=9)),
    tiny("k = 6, reduced draft", sizes(6, **SMALL), "reduced"),
    tiny("any order of k", sizes(K, adaptive=True), "latent", prepare=follow_the_script),
    tiny("exact", sizes(K, exact=True)),
    tiny("exact and grammar", sizes(K, exact=True), optimised=True, repeats=False, **SPELLING),
    tiny("deep tree", sizes(6, eagle_topk=2, num_draft_tokens=20, **SMALL)),
    tiny("wide tree", sizes(2, page_size=16, num_pages=12, eagle_topk=8, num_draft_tokens=40)),
    of_config("llama", LLAMA, tiny_draft),
    of_config("minimax, reduced draft", MINIMAX, reduced_draft),
    of_setup("tree on devices", Setup(4, False, "grouped", "int4", False), sizes(K, **TREE)),
    of_setup("whole contexts", LATENT, divided(1)),
    of_setup("whole contexts, exact", LATENT, divided(1, exact=True)),
    of_setup("2 parts of 4, grouped", GROUPED, divided(2)),
    of_setup("4 parts, exact", LATENT, divided(4, exact=True)),
    of_setup("4 parts, grouped", GROUPED, divided(4)),
    of_setup("2 parts", TWO, divided(2)),
    of_setup("2 parts, grouped, exact", TWO._replace(draft="grouped"), divided(2, exact=True)),
    of_setup("4 parts of 8, draft whole", Setup(8, True, "latent", "float32", False), divided(4)),
    of_setup(
        "2 parts of 4, float8, exact",
        LATENT._replace(by_expert=True),
        divided(2, exact=True, **FLOAT8),
    ),
    of_setup("2 parts, float8", TWO, divided(2, **FLOAT8)),
    of_setup("4 parts, grouped, float8", GROUPED, divided(4, **FLOAT8)),
    sharing_heads("shared heads", divided(1)),
    sharing_heads("shared heads of 2 parts, exact", divided(2, exact=True)),
    sharing_heads("shared heads, exact", divided(1, exact=True)),
    sharing_heads("shared heads of 2 parts by experts", divided(2), by_expert=True),
    sharing_heads("shared heads of 2 parts, float8", divided(2, **FLOAT8)),
    sharing_heads("shared heads of 8", divided(1), 8),
    sharing_heads("shared heads of 8, 2 parts, float8", divided(2, exact=True, **FLOAT8), 8),
    sharing_heads("shared heads of 8, 4 parts", divided(4), 8),
    sharing_heads("shared heads of 8, 4 parts, float8", divided(4, **FLOAT8), 8),
    sharing_heads("shared heads of 8, 4 parts, exact", divided(4, exact=True), 8),
    sharing_heads("4 parts of latents, 2 of the draft", divided(4), target=wide_target),
    replicas("2 replicas", 2, 1, "latent"),
    replicas("4 replicas", 4, 1, "grouped"),
    replicas("4 replicas, exact", 4, 1, "grouped", exact=True),
    replicas("2 replicas of 2", 2, 2, "grouped"),
    replicas("2 replicas of 2, exact", 2, 2, "latent", exact=True),
    replicas("4 replicas, mxfp4", 4, 1, "grouped", "mxfp4"),
    replicas("8 replicas, int4", 8, 1, "latent", "int4", num_pages=None),
    replicas("2 replicas of 4, 2 parts", 2, 4, "latent", page_size=2, num_pages=36, **PARTS),
    replicas("2 replicas, trees", 2, 1, "grouped", num_pages=22, **TREE),
    replicas("2 replicas, grammar", 2, 1, "grouped", traffic=SPELLING),
    replicas("2 replicas, k by batch", 2, 1, "latent", **BY_BATCH),
    seeing("seeing", 1, sizes(K)),
    seeing("seeing, 2 devices", 2, sizes(K, mm_encoder_cache_tokens=12)),
    seeing("seeing, exact", 1, sizes(K, exact=True)),
    seeing("seeing, exact, 2 devices", 2, sizes(K, exact=True)),
    seeing("seeing tree", 1, sizes(K, **TREE)),
    seeing("seeing tree, draft too", 2, sizes(K, mm_draft_embedding="target", **TREE)),
    *(of_setup(f"{setup}", setup, sizes(K), long_count=100) for setup in ALL),
    *(sharing_heads(f"minimax on {n} devices", sizes(K), n, target=wide_minimax) for n in (4, 8)),
]
"""Worlds of the long form."""
WORLDS = [*FEW, *(replace(world, long=True) for world in SWEEP)]
