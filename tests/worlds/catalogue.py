"""The worlds: every setting of the engine that users choose, in few pairs."""

from collections.abc import Callable
from functools import cache, partial
from itertools import count
from typing import Any

from driving import sizes
from grammar_traffic import grammar_requests
from setups import Setup, pair_on_devices
from shared_pair import pair_on_one_device, shared_draft, shared_target
from spelling_tokenizer import EOS, SpellingTokenizer
from tiny import LLAMA, reduced_draft, tiny_draft, tiny_target
from traffic import random_requests, without_logits
from wide_pair import wide_target
from world import Models, World

from eagle3_jax.config import TargetConfig
from eagle3_jax.engine import Engine, EngineConfig
from eagle3_jax.engine.adaptive.choose_k import ChosenK
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target

MakeDraft = Callable[[Target], Eagle3Draft]

K = 3
TREE: dict[str, Any] = {"eagle_topk": 3, "num_draft_tokens": 9}
FLOAT8: dict[str, Any] = {"kv_cache_dtype": "fp8", "kv_cache_scale": 0.05}


class Script:
    """A chooser that runs through k = 0..3 in a fixed order, so that every change happens."""

    ORDER = (3, 0, 0, 2, 0, 1, 3, 1, 0, 3, 2, 1, 0, 0, 0)

    def __init__(self) -> None:
        self.rounds = count()

    def choose(self, members: object) -> ChosenK:
        return ChosenK(self.ORDER[next(self.rounds) % len(self.ORDER)])

    def took(self, choice: ChosenK, seconds: float) -> None: ...

    def committed(self, verified: int, accepted: int) -> None: ...


def follow_the_script(engine: Engine) -> None:
    """Has the engine choose k by the script, from its beginning."""
    script: Any = Script()
    engine._chooser = script


@cache
def _tiny_target() -> Target:
    return shared_target()


@cache
def _tiny_models(draft: str) -> Models:
    target = _tiny_target()
    return Models(
        target, reduced_draft(target) if draft == "reduced" else shared_draft(draft, target)
    )


@cache
def _tiny_alone() -> Models:
    return Models(pair_on_one_device("grouped")[0], None)


def tiny(name: str, config: EngineConfig, draft: str = "grouped", **options: Any) -> World:
    """The pair that tests share."""
    options = {"requests": partial(random_requests, typical=True), **options}
    return World(name, partial(_tiny_models, draft), _tiny_alone, config, **options)


def of_config(name: str, target: TargetConfig, make_draft: MakeDraft, **options: Any) -> World:
    """Another target on one device."""

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


def on_devices(name: str, setup: Setup, config: EngineConfig, **options: Any) -> World:
    """A pair that lies on devices like `setup`."""
    options = {"program": "devices", **options}
    make = lambda: Models(*pair_on_devices(setup))  # noqa: E731
    return World(name, make, partial(_wide_alone, setup.format), config, **options)


def divided(parts: int, **changes: Any) -> EngineConfig:
    """Pages of 4 tokens, for little more than one full sequence of the four slots."""
    shared = {"page_size": 4 // parts, "num_pages": 20, "decode_context_parallel_size": parts}
    return sizes(K, **(shared | changes))


SPELLING: dict[str, Any] = {
    "requests": grammar_requests,
    "tokenizer": SpellingTokenizer(),
    "eos": (EOS,),
}
LATENT = Setup(4, False, "latent", "float32", True)
GROUPED = Setup(4, False, "grouped", "float32", True)
WORLDS = [
    tiny("chain", sizes(K)),
    tiny("tree", sizes(K, **TREE)),
    tiny("reduced draft", sizes(6, page_size=2, num_pages=60), "reduced"),
    tiny(
        "any order of k",
        sizes(K, adaptive=True),
        "latent",
        prepare=follow_the_script,
    ),
    tiny("host memory", sizes(K, kv_offloading_bytes=10_000_000), repeats=False),
    tiny("grammar", sizes(K), repeats=False, **SPELLING),
    tiny("grammar and tree", sizes(K, **TREE), repeats=False, **SPELLING),
    tiny("exact and grammar", sizes(K, exact=True), optimised=True, repeats=False, **SPELLING),
    tiny(
        "exact float8",
        sizes(K, exact=True, **FLOAT8),
        "latent",
        optimised=True,
        requests=random_requests,
    ),
    tiny("interpreted kernels", sizes(K, kernels="pallas"), requests=without_logits),
    of_config("llama", LLAMA, tiny_draft),
    on_devices("tree on devices", Setup(2, True, "grouped", "float32", False), sizes(K, **TREE)),
    on_devices("experts of mxfp4", Setup(8, True, "latent", "mxfp4", True), sizes(K)),
    on_devices("divided contexts", LATENT, divided(4)),
]
