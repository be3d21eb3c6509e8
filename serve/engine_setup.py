"""Builds the service of a server: loads target and draft, makes the engine and its thread."""

import os
import random
import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from eagle3_jax.config import TargetConfig
from eagle3_jax.engine import Engine, EngineConfig
from eagle3_jax.engine.grammars.interface import NO_GRAMMARS
from eagle3_jax.engine.kv.events import KVEventLog
from eagle3_jax.engine.programs.messages import Peers
from eagle3_jax.engine.programs.remote import Devices
from serve.chat_format.sandboxed_templates import sandboxed
from serve.chat_setup import read_answers, set_up_chat, set_up_images
from serve.demo import PairDirectories
from serve.engine.grammar_pool import GrammarPool
from serve.engine.thread import EngineThread
from serve.kv_transfer.transfers import start_transfers
from serve.openai.service import ModelInfo, Service
from serve.options.chat import ChatOptions
from serve.options.serve_options import ServeOptions
from serve.pair.abstract_models import prepare_pair
from serve.pair.generation_config import choose_defaults
from serve.pair.loading import LoadedPair, build_engine, fit_length, load_pair, pair_of
from serve.pair.notices import Notify
from serve.startup import LoggedStartup, StartupReport, describe_engine, notify_of_cautions
from serve.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from serve.hosts.lead import Leader
    from serve.kv_events.publisher import KVEventPublisher

SEED_BITS = 53
"""Clients that read every number as a double get these seeds exactly."""


def seed_source(seed: int | None) -> Callable[[], int]:
    """Return a source of seeds: reproducible if `seed` is given, else random."""
    if seed is None:
        return lambda: secrets.randbits(SEED_BITS)
    source = random.Random(seed)
    return lambda: source.getrandbits(SEED_BITS)


Report = StartupReport | LoggedStartup


def prepare(
    options: ServeOptions,
    found: PairDirectories,
    report: Report,
    leader: "Leader | None",
    events: "KVEventPublisher | None",
    owner: ExitStack,
) -> Service:
    """Load the pair and return the service, whose sandboxes `owner` ends.

    Raises ValueError or OSError if that fails.
    """
    choose = choose_defaults(options.generation_config, options.generation_overrides)
    engine, pair = build(options, found, report.notify, leader, events.log if events else None)
    names = options.served_model_name or (options.model or options.demo,)
    metrics = Metrics(names[0])
    transfers = start_transfers(engine, options.kv_transfer, report.notify)
    thread = EngineThread(
        engine,
        metrics,
        max_queued=options.operations.max_queued,
        progress=report.on_compiled,
        explain=leader.explain if leader else None,
        between_steps=[
            *([events.publish] if events else ()),
            *([transfers.between_steps] if transfers else ()),
        ],
    )
    if transfers:
        transfers.run_soon = thread.run_soon
        metrics.watch_kv_transfers(transfers)
    metrics.watch(lambda: thread.stats)
    if events:
        metrics.watch_kv_events(events)
    share = options.memory.claim(os.environ) if options.memory else None
    metrics.describe_cache(engine.config, share)
    report.notify(describe_engine(engine.config))
    notify_of_cautions(engine.config, report.notify)
    return Service(
        ModelInfo(names, options.model or str(found.target), engine.config.max_model_len),
        sandboxed(pair.tokenizer, owner),
        thread,
        metrics,
        {**choose(pair.defaults), "logprobs_mode": options.logprobs_mode},
        seed_source(options.seed),
        options.spec_metrics,
        grammars=_grammars(engine, options.chat, owner),
        reading=read_answers(options.chat, pair.tokenizer),
        template_kwargs=options.chat.template_kwargs,
        strict_tools=options.chat.strict_tools,
        thinking_token_budget=options.chat.thinking_token_budget,
        transfers=transfers,
        images=set_up_images(options.images, pair.vision, owner),
    )


def _grammars(engine: Engine, options: ChatOptions, owner: ExitStack) -> GrammarPool | None:
    """Return the engine's grammars, each tried in a sandbox before it is compiled here.

    Raises ValueError if the engine has none but an option needs them.
    """
    if engine.grammars is None:
        if options.strict_tools or options.thinking_token_budget is not None:
            raise ValueError(f"--strict-tools, --thinking-token-budget: {NO_GRAMMARS}")
        return None
    from serve.engine.grammar_trials import GrammarTrials  # Needs llguidance, like the grammars.

    engine.grammars.try_by(GrammarTrials(engine.grammars.prepare(), owner))
    return GrammarPool(engine.grammars)


def build(
    options: ServeOptions,
    found: PairDirectories,
    notify: Notify,
    peers: Peers | None = None,
    kv_events: KVEventLog | None = None,
) -> tuple[Engine, LoadedPair]:
    """Load the pair (only its shapes if `peers` own all devices) and build the engine.

    Every process of an engine calls this.
    """
    named = found.target, found.draft, options.load, options.parallel
    wanted = {
        "tokenizer": found.tokenizer,
        "vision": options.images.loads_vision,
        "split_vision": options.engine.mm_encoder_tp_mode == "weights",
        "adapt_tokenizer": partial(set_up_chat, options.chat),
    }

    def configure(target: TargetConfig, _: object) -> EngineConfig:
        return fit_length(options.engine, options.max_model_len, target)

    if isinstance(peers, Devices):
        prepared = prepare_pair(
            *named, **wanted, notify=lambda _: None
        )  # The peers have printed it.
        asked = configure(prepared.target.model.config, None)
        pair = pair_of(prepared, peers.info.configure(asked))
    else:
        notify(f"loading {options.model or options.demo}")
        pair = load_pair(
            *named,
            **wanted,
            memory=options.memory,
            cpu_threads=options.cpu_threads,
            configure=configure,
            notify=notify,
        )
    clock = time.monotonic
    return build_engine(pair, pair.config, clock=clock, peers=peers, kv_events=kv_events), pair


def build_again(
    options: ServeOptions,
    found: PairDirectories,
    service: Service,
    kv_events: KVEventLog | None,
    leader: "Leader",
) -> Engine:
    """Build an engine for an existing service, after its other processes were restarted."""
    engine, _ = build(options, found, lambda _: None, leader, kv_events)
    if service.grammars:
        of_the_first: Any = service.grammars.grammars
        engine.grammars = of_the_first
    if kv_events:
        kv_events.cleared()
    return engine
