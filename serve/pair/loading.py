"""Load a pair from its directories and build an engine over it."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from convert.device_memory import check_device_memory, device_bytes
from convert.text.tokenizer import Tokenizer
from eagle3_jax.config import TargetConfig
from eagle3_jax.engine import Engine, EngineConfig
from eagle3_jax.engine.kv.events import KVEventLog
from eagle3_jax.engine.programs.messages import Peers
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.models.vision import VisionModel
from eagle3_jax.speculative.state import DecodeState
from pallas_kernels.gpu import AUTOTUNE_LEVEL, xla_flags
from serve.options.checkpoint import DEFAULTS, LoadOptions
from serve.options.memory import MemoryShare
from serve.options.parallel import ONE_DEVICE, ParallelOptions
from serve.pair.abstract_models import AbstractModels, as_it_is, prepare_pair
from serve.pair.cpu_threads import check_cpu_threads
from serve.pair.generation_config import SamplingDefaults
from serve.pair.memory import check_host_memory, fitting_pages, share_bytes
from serve.pair.notices import Notify, notify_of_divided_contexts, print_to_stderr

CHUNK_UNIT = 256
"""Multiple of rows for kernel tiles."""
Configure = Callable[[TargetConfig, Tokenizer], EngineConfig]
"""A function that returns an engine's configuration for a target before its weights are read."""


@dataclass(frozen=True)
class LoadedPair:
    """A target with its tokenizer and defaults, and its draft, if any.

    `vision` is the target's, if it was requested and exists. `config` is the engine's, if it was
    known when the pair was loaded.
    """

    target: Target
    draft: Eagle3Draft | None
    tokenizer: Tokenizer
    defaults: SamplingDefaults
    config: EngineConfig | None = None
    vision: VisionModel | None = None

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """All ids that end an answer, from every file of the checkpoint."""
        tokenizer, defaults = self.tokenizer.eos_token_ids, self.defaults.eos_token_ids
        return tuple(dict.fromkeys((*self.target.config.eos_token_ids, *tokenizer, *defaults)))


def load_pair(
    model: str | Path,
    draft: str | Path | None,
    options: LoadOptions = DEFAULTS,
    parallel: ParallelOptions = ONE_DEVICE,
    *,
    tokenizer: Path | None = None,
    vision: bool = False,
    split_vision: bool = False,
    configure: Configure | None = None,
    memory: MemoryShare | None = None,
    cpu_threads: int | None = None,
    notify: Notify = print_to_stderr,
    adapt_tokenizer: Callable[[Tokenizer], Tokenizer] = as_it_is,
) -> LoadedPair:
    """Load a pair from directories or hub ids, published or converted, and report assumptions.

    Raises ValueError or OSError if files are wrong or devices are too small, before any weight is
    read.

    Args:
        tokenizer: directory of a tokenizer that replaces the model's.
        vision: load the model's vision part if it has one; `split_vision` splits it over devices.
        configure: returns the engine's configuration, if it is known. Its KV cache must fit beside
            the weights, and fills the devices' memory up to `memory`.
        cpu_threads: the number that `set_cpu_threads` was given.
        adapt_tokenizer: returns the tokenizer to use, or rejects it.
    """
    # The fraction must be set before JAX initialises devices.
    allocator_share = memory.claim(os.environ) if memory else 1.0
    of_vision = {"vision": vision, "split_vision": split_vision}
    of_text = {"tokenizer": tokenizer, "adapt_tokenizer": adapt_tokenizer}
    prepared = prepare_pair(model, draft, options, parallel, **of_vision, **of_text, notify=notify)
    check_cpu_threads(cpu_threads)
    target, models = prepared.target, prepared.models
    needed = prepared.weights_needed(notify)
    config = configure and configure(target.model.config, prepared.tokenizer)
    if config:
        _check_autotuning(config)
        shapes = prepared.state_shapes
        if memory:
            usable = share_bytes(memory, allocator_share, target.devices)
            config = _filling(config, shapes, sum(needed.values()), usable, notify)
        needed["of KV cache and requests"] = device_bytes(jax.tree.leaves(shapes(config)))
        check_host_memory(config.kv_offloading_bytes)
        notify_of_divided_contexts(*models[:2], config, notify, parallel)
    check_device_memory(needed, target.devices)
    for part in filter(None, (target, prepared.draft, prepared.vision)):
        part.fill()
    return pair_of(prepared, config)


def _check_autotuning(config: EngineConfig) -> None:
    """Raise ValueError if XLA_FLAGS contradict the configuration."""
    level = xla_flags().get(AUTOTUNE_LEVEL)
    if config.xla_autotune and level == "0":
        raise ValueError(
            f"--xla-autotune contradicts --{AUTOTUNE_LEVEL}=0 of XLA_FLAGS: leave one of them out"
        )
    if config.exact and level not in (None, "0"):
        raise ValueError(
            "--exact needs the same programs at every start, and autotuning may choose others: "
            f"leave --{AUTOTUNE_LEVEL}={level} of XLA_FLAGS out"
        )


def pair_of(prepared: AbstractModels, config: EngineConfig | None = None) -> LoadedPair:
    """Return the loaded pair; its models are abstract unless they were filled."""
    target, draft, vision = prepared.models
    return LoadedPair(target, draft, prepared.tokenizer, prepared.defaults, config, vision)


def _filling(
    config: EngineConfig,
    shapes: Callable[[EngineConfig], DecodeState],
    weights: int,
    usable: int | None,
    notify: Notify,
) -> EngineConfig:
    """Return the configuration with as many pages as fit into `usable` bytes beside the weights."""
    if usable is None:
        notify("note: devices here don't tell their memory, so no share of it sizes the KV cache")
        return config
    return replace(config, num_pages=fitting_pages(config, shapes, weights, usable))


def build_engine(
    pair: LoadedPair,
    config: EngineConfig | None = None,
    *,
    clock: Callable[[], float] | None = None,
    peers: Peers | None = None,
    kv_events: KVEventLog | None = None,
    **fields: Any,
) -> Engine:
    """Build an engine over the pair, by `config` or by `fit_length` of `fields`.

    `clock` measures an adaptive engine's rounds, in seconds. `peers` are processes that hold parts
    of the pair. `kv_events` receives changes of the prefix index. ValueError for impossible sizes.
    """
    if config is None:
        length = fields.pop("max_model_len", None)
        config = fit_length(EngineConfig(**fields), length, pair.target.config)
    return Engine(
        pair.target,
        pair.draft,
        config,
        tokenizer=pair.tokenizer,
        eos_token_ids=pair.eos_token_ids,
        clock=clock,
        peers=peers,
        kv_events=kv_events,
        vision=pair.vision,
    )


def fit_length(
    config: EngineConfig, wanted: int | None, target: TargetConfig, needed: int = 0
) -> EngineConfig:
    """Return the configuration with a context length that the target was trained for.

    That is `wanted`, or else its own or `needed` tokens, up to the target's limit. Chunks are no
    longer, because a chunk has one prompt's tokens and is computed whole. ValueError for more.
    """
    trained = target.max_position_embeddings
    length = min(max(config.max_model_len, needed), trained) if wanted is None else wanted
    if length > trained:
        raise ValueError(f"max_model_len is at most the model's {trained} tokens; got {length}")
    longest = -(-length // CHUNK_UNIT) * CHUNK_UNIT
    return replace(config, max_model_len=length, prefill_chunk=min(config.prefill_chunk, longest))
