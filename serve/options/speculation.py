"""Options of speculation: vLLM's --speculative-config, its keys as flags, and SGLang's."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from convert.command_line.options import add_options, flags_of, json_object, option
from eagle3_jax.engine.config import EngineConfig
from serve.options.foreign import KEYS as KEYS_WITHOUT_EFFECT

DEFAULT_K = EngineConfig.num_speculative_tokens
DEFAULT_LOOKUP = 8
LOOKUP_KEYS = ("prompt_lookup_min", "prompt_lookup_max", "num_lookup_tokens")
"""Each of them turns lookup on. The first two are vLLM's."""
ONLY_LENGTH = 5
"""vLLM's lengths of a match for ngram, if neither is given."""
NUMBER = (int, float)
SPECULATIVE_KEYS: Mapping[str, tuple[Any, str]] = {
    "model": ((str,), "a directory or a hub id"),
    "revision": ((str,), "a branch, tag or commit"),
    "method": ((str,), "'eagle3', or 'ngram' for lookup without a draft"),
    "num_speculative_tokens": ((int,), "an integer"),
    "num_speculative_tokens_per_batch_size": (
        [(list,)],
        "a list of [first batch size, last batch size, k]",
    ),
    "prompt_lookup_max": ((int,), "an integer"),
    "prompt_lookup_min": ((int,), "an integer"),
    "num_lookup_tokens": ((int,), "an integer"),
    "draft_tensor_parallel_size": ((int,), "an integer"),
    "rejection_sample_method": ((str,), "a name"),
    "draft_sample_method": ((str,), "'probabilistic' or 'greedy'"),
    "synthetic_acceptance_length": (NUMBER, "a number"),
    "synthetic_acceptance_rates": ([NUMBER], "a list of numbers"),
}
"""Keys of --speculative-config -> type and description of their values."""
REFUSED_KEYS: Mapping[str, str] = {
    "disable_by_batch_size": "give num_speculative_tokens_per_batch_size",
    "draft_load_config": "the draft is loaded as the target is",
    "enable_adaptive_verification": "--adaptive chooses k",
    "parallel_drafting": "drafts are made one after the other",
    "tensor_parallel_size": "give draft_tensor_parallel_size",
    "use_heterogeneous_vocab": "target and draft have one tokenizer",
}
"""vLLM's keys that ask for what this engine lacks, with the reason; null and false are accepted."""
KEYS = {"draft": "model", "draft_revision": "revision"}
"""Options whose keys of --speculative-config have other names."""


def _is(kind: Any, value: Any) -> bool:
    """Return whether a value has one of the types, or is a list of such; bools are no numbers."""
    if isinstance(kind, list):
        return type(value) is list and all(_is(kind[0], item) for item in value)
    return type(value) in kind


def _read_config(text: str) -> dict[str, Any]:
    config = json_object(text)
    for key in (key for key in REFUSED_KEYS if config.pop(key, None) not in (None, False)):
        raise ArgumentTypeError(f"{key} is not supported: {REFUSED_KEYS[key]}; leave it out")
    known = (*SPECULATIVE_KEYS, *KEYS_WITHOUT_EFFECT)
    if unknown := sorted(set(config) - set(known)):
        raise ArgumentTypeError(f"has unknown keys {unknown}; there are {', '.join(known)}")
    for key, value in config.items():
        kind, expected = SPECULATIVE_KEYS.get(key, ((type(value),), ""))
        if value is not None and not _is(kind, value):
            raise ArgumentTypeError(f"{key} must be {expected}; got {value!r}")
    return config


@dataclass(frozen=True)
class KeyFlags:
    """Keys of --speculative-config that some commands have as flags."""

    draft: str | None = option("--draft DRAFT", "draft checkpoint directory, or hub id")
    draft_revision: str | None = option(
        "--draft-revision REV", "branch, tag or commit of the draft"
    )
    num_speculative_tokens: int | None = option(
        "--num-speculative-tokens K",
        f"0..8, 0 is plain decoding; default: {DEFAULT_K} with a draft",
        int,
    )
    rejection_sample_method: str | None = option(
        "--rejection-sample-method NAME", "coupled (default), standard, block or synthetic"
    )
    draft_sample_method: str | None = option(
        "--draft-sample-method NAME", "probabilistic (default) or greedy"
    )
    synthetic_acceptance_length: float | None = option(
        "--synthetic-acceptance-length L", "mean tokens of a round", float
    )


@dataclass(frozen=True)
class SpeculationFlags:
    """vLLM's configuration, and SGLang's options of a chain."""

    speculative_config: dict[str, Any] | None = option(
        "--speculative-config JSON", f"keys: {', '.join(SPECULATIVE_KEYS)}", _read_config
    )
    adaptive: bool = option(
        "--adaptive",
        "choose k in each round, 0..num_speculative_tokens, by measured tokens a second",
    )
    speculative_algorithm: str | None = option(
        "--speculative-algorithm EAGLE3", "SGLang's flag for a draft; EAGLE3 is the only algorithm"
    )
    speculative_draft_model_path: str | None = option(
        "--speculative-draft-model-path DRAFT", "draft directory, or hub id"
    )
    speculative_draft_model_revision: str | None = option(
        "--speculative-draft-model-revision REV", "branch, tag or commit of the draft"
    )
    speculative_num_steps: int | None = option(
        "--speculative-num-steps K",
        f"draft tokens per round, or levels of a tree; default {DEFAULT_K}",
        int,
    )


@dataclass(frozen=True)
class TreeFlags:
    """SGLang's options of a tree."""

    speculative_eagle_topk: int | None = option(
        "--speculative-eagle-topk N", "children of each tree node; default 1, a chain", int
    )
    speculative_num_draft_tokens: int | None = option(
        "--speculative-num-draft-tokens N",
        "nodes of a tree to verify, its root included; K+1 in a chain",
        int,
    )


@dataclass(frozen=True)
class Speculation:
    """The draft and the method of speculation.

    `draft` is a directory or hub id with its `revision`; None for the embedded draft or no draft.
    `engine` has fields of EngineConfig. `draft_tensor_parallel_size` None means as many devices as
    the target. `without_effect` names given keys that change nothing.
    """

    draft: str | None = None
    revision: str | None = None
    engine: Mapping[str, Any] = field(default_factory=dict)
    draft_tensor_parallel_size: int | None = None
    without_effect: tuple[str, ...] = ()


def add_speculation_flags(parser: ArgumentParser, *, keys: bool = False) -> None:
    """Add the options as a group; `keys` adds KeyFlags."""
    group = parser.add_argument_group("speculation")
    for table in (*([KeyFlags] if keys else []), SpeculationFlags, TreeFlags):
        add_options(group, table)


def read_speculation(flags: Namespace) -> Speculation:
    """Read the group; ValueError, naming flag or key, for bad values, no draft or too many."""
    speculation = _as_given(flags)
    if flags.demo and speculation.draft:
        raise ValueError("--demo brings its own draft; leave the draft's directory (--draft) out")
    has_draft = flags.demo or speculation.draft
    k = speculation.engine.get("num_speculative_tokens", 0)
    # In exact mode k also sets the width of plain decoding's program, which needs no draft.
    if k and not has_draft and not flags.exact:
        raise ValueError(
            "speculation needs a draft: the key `model` of --speculative-config"
            + (", or --draft DIR" if hasattr(flags, "draft") else "")
        )
    return speculation


def _as_given(flags: Namespace) -> Speculation:
    """Read the one form that was used: JSON, its keys as flags, or SGLang's flags."""
    given = {name: value for name, value in vars(flags).items() if value is not None}
    config = given.pop("speculative_config", None)
    sglang = [name for name in given if name.startswith("speculative_")]
    named = flags_of(KeyFlags)
    keys = {name: given[name] for name in named if name in given}
    if config is not None and (sglang or keys):
        names = [f"--{name.replace('_', '-')}" for name in sglang] + [named[k] for k in keys]
        raise ValueError(
            f"--speculative-config already says everything; leave out {', '.join(names)}"
        )
    if sglang and keys:
        raise ValueError(f"SGLang's flags and {named[next(iter(keys))]}: give one of them")
    if sglang:
        return _from_sglang(flags)
    if config is None:
        config = {KEYS.get(name, name): value for name, value in keys.items()}
    return _from_keys(config, flags)


def _from_keys(config: Mapping[str, Any], flags: Namespace) -> Speculation:
    given = {key: value for key, value in config.items() if value is not None}
    given = _with_lookup(given, given.pop("method", "eagle3"))
    without_effect = tuple(
        f"--speculative-config {key}" for key in KEYS_WITHOUT_EFFECT if key in given
    )
    dtype = str(given.get("kv_cache_dtype", flags.kv_cache_dtype))
    if dtype.removesuffix("_e4m3") != flags.kv_cache_dtype.removesuffix("_e4m3"):
        raise ValueError(
            "--speculative-config kv_cache_dtype: target and draft share pages of one dtype, that "
            f"of --kv-cache-dtype, {flags.kv_cache_dtype!r}; got {given['kv_cache_dtype']!r}"
        )
    draft, revision = given.pop("model", None), given.pop("revision", None)
    size = given.pop("draft_tensor_parallel_size", None)
    engine = {key: _frozen(v) for key, v in given.items() if key not in KEYS_WITHOUT_EFFECT}
    proposes = flags.demo or draft or flags.speculative_config is not None
    engine.setdefault("num_speculative_tokens", DEFAULT_K if proposes else 0)
    return Speculation(draft, revision, engine, size, without_effect)


def _with_lookup(given: dict[str, Any], method: str) -> dict[str, Any]:
    """Complete the keys of lookup; vLLM's method ngram is lookup with k = 0."""
    if method not in ("eagle3", "ngram"):
        raise ValueError(
            f"--speculative-config method: this release has 'eagle3' and 'ngram'; got {method!r}"
        )
    alone = method == "ngram"
    if alone and (model := given.get("model")):
        raise ValueError(
            f"--speculative-config method 'ngram' has no draft; leave model {model!r} out, or give "
            "method 'eagle3' with prompt_lookup_max for both"
        )
    if not alone and not any(key in given for key in LOOKUP_KEYS):
        return given
    width = given.get("num_speculative_tokens", DEFAULT_LOOKUP) if alone else DEFAULT_LOOKUP
    either = given.get("prompt_lookup_min", given.get("prompt_lookup_max"))
    either = ONLY_LENGTH if either is None and alone else either
    bounds = {} if either is None else dict.fromkeys(LOOKUP_KEYS[:2], either)
    completed = {"num_lookup_tokens": width, **bounds, **given}
    return {**completed, "num_speculative_tokens": 0} if alone else completed


def _from_sglang(flags: Namespace) -> Speculation:
    algorithm = flags.speculative_algorithm
    _require("--speculative-algorithm", algorithm and algorithm.upper(), "EAGLE3")
    topk, nodes = flags.speculative_eagle_topk, flags.speculative_num_draft_tokens
    steps = flags.speculative_num_steps
    if steps is None and topk in (None, 1) and nodes is not None:
        steps = nodes - 1
    given = {"num_speculative_tokens": steps, "eagle_topk": topk, "num_draft_tokens": nodes}
    engine = {name: value for name, value in given.items() if value is not None}
    engine.setdefault("num_speculative_tokens", DEFAULT_K)
    draft, revision = flags.speculative_draft_model_path, flags.speculative_draft_model_revision
    return Speculation(draft, revision, engine)


def _require(name: str, value: object, supported: object) -> None:
    if value != supported:
        raise ValueError(f"{name}: this release has only {supported!r}; got {value!r}")


def _frozen(value: Any) -> Any:
    """Convert JSON's lists to tuples."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
