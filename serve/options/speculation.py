"""Flags of speculation: vLLM's --speculative-config, its keys as flags, and SGLang's."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from convert.files.json_object import parse_value
from eagle3_jax.engine.config import EngineConfig

DEFAULT_K = EngineConfig.num_speculative_tokens
DRAFT_KEYS = ("quantization", "max_model_len", "kv_cache_dtype")
"""vLLM's keys for the draft alone. Here tensors define its quantisation, and it shares the target's
length and cache dtype."""
KEY_FLAGS = {
    "model": "--draft",
    "revision": "--draft-revision",
    "num_speculative_tokens": "--num-speculative-tokens",
    "rejection_sample_method": "--rejection-sample-method",
    "synthetic_acceptance_length": "--synthetic-acceptance-length",
}
"""Keys of --speculative-config that some commands have as flags."""


@dataclass(frozen=True)
class Speculation:
    """The draft and the method of speculation.

    `draft` is a directory or hub id with its `revision`; None for the embedded draft or no draft.
    `engine` has fields of EngineConfig. `draft_tensor_parallel_size` None means as many devices as
    the target. `without_effect` lists given keys that change nothing.
    """

    draft: str | None = None
    revision: str | None = None
    engine: Mapping[str, Any] = field(default_factory=dict)
    draft_tensor_parallel_size: int | None = None
    without_effect: tuple[str, ...] = ()


def add_speculation_flags(parser: argparse.ArgumentParser, *, keys: bool = False) -> None:
    """Add the flags as a group; `keys` adds those of KEY_FLAGS."""
    group = parser.add_argument_group("speculation")
    add = group.add_argument
    if keys:
        add("--draft", metavar="DRAFT", help="draft checkpoint directory, or hub id")
        add("--draft-revision", metavar="REV", help="of its hub id")
        add(
            "--num-speculative-tokens",
            type=int,
            metavar="K",
            help=f"0..8, 0 is plain decoding; default: {DEFAULT_K} with a draft",
        )
        add(
            "--rejection-sample-method",
            metavar="NAME",
            help="coupled (default), standard or synthetic",
        )
        add("--synthetic-acceptance-length", type=float, metavar="L", help="mean tokens a round")
    add("--speculative-config", metavar="JSON", help=f"keys: {', '.join(SPECULATIVE_KEYS)}")
    add(
        "--adaptive",
        action="store_true",
        help="choose k round by round, 0..num_speculative_tokens, by measured tokens a second",
    )
    add("--speculative-algorithm", metavar="EAGLE3", help="SGLang's flags:")
    add("--speculative-draft-model-path", metavar="DRAFT", help="draft directory, or hub id")
    add("--speculative-draft-model-revision", metavar="REV", help="of its hub id")
    add(
        "--speculative-num-steps",
        type=int,
        metavar="K",
        help=f"drafts a round; default {DEFAULT_K}",
    )
    add_tree_flags(group)


def add_tree_flags(parser: Any) -> None:
    """Add SGLang's flags of a tree to a parser or group."""
    parser.add_argument(
        "--speculative-eagle-topk",
        type=int,
        metavar="N",
        help="children a node; default 1, a chain",
    )
    parser.add_argument(
        "--speculative-num-draft-tokens",
        type=int,
        metavar="N",
        help="nodes of a tree to verify, the verified token among them; K+1 in a chain",
    )


def read_speculation(flags: argparse.Namespace) -> Speculation:
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


def _as_given(flags: argparse.Namespace) -> Speculation:
    """Read the one form that was used: JSON, its keys as flags, or SGLang's flags."""
    given = {name: value for name, value in vars(flags).items() if value is not None}
    config = given.pop("speculative_config", None)
    sglang = [name for name in given if name.startswith("speculative_")]
    dests = {key: flag[2:].replace("-", "_") for key, flag in KEY_FLAGS.items()}
    keys = {key: given[dest] for key, dest in dests.items() if dest in given}
    if config is not None and (sglang or keys):
        names = [f"--{name.replace('_', '-')}" for name in sglang] + [KEY_FLAGS[k] for k in keys]
        raise ValueError(
            f"--speculative-config already says everything; leave out {', '.join(names)}"
        )
    if sglang and keys:
        raise ValueError(f"SGLang's flags and {KEY_FLAGS[next(iter(keys))]}: give one of them")
    if sglang:
        return _from_sglang(flags)
    return _from_keys(keys if config is None else _read_json(config), flags)


def _read_json(text: str) -> dict[str, Any]:
    try:
        config = parse_value(text)
    except ValueError as error:
        raise ValueError(f"--speculative-config is not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"--speculative-config must be a JSON object; got {text}")
    known = (*SPECULATIVE_KEYS, *DRAFT_KEYS)
    unknown = sorted(set(config) - set(known))
    if unknown:
        keys = ", ".join(known)
        raise ValueError(f"--speculative-config: unknown keys {unknown}; there are {keys}")
    for key, value in config.items():
        kind, expected = SPECULATIVE_KEYS.get(key, ((type(value),), ""))
        if value is not None and not _is(kind, value):
            raise ValueError(f"--speculative-config {key} must be {expected}; got {value!r}")
    return config


def _from_keys(config: Mapping[str, Any], flags: argparse.Namespace) -> Speculation:
    given = {key: value for key, value in config.items() if value is not None}
    _require("--speculative-config method", given.pop("method", "eagle3"), "eagle3")
    without_effect = tuple(key for key in DRAFT_KEYS if key in given)
    dtype = str(given.get("kv_cache_dtype", flags.kv_cache_dtype))
    if dtype.removesuffix("_e4m3") != flags.kv_cache_dtype.removesuffix("_e4m3"):
        raise ValueError(
            "--speculative-config kv_cache_dtype: target and draft share pages of one dtype, that "
            f"of --kv-cache-dtype, {flags.kv_cache_dtype!r}; got {given['kv_cache_dtype']!r}"
        )
    draft, revision = given.pop("model", None), given.pop("revision", None)
    size = given.pop("draft_tensor_parallel_size", None)
    engine = {key: _frozen(v) for key, v in given.items() if key not in DRAFT_KEYS}
    proposes = flags.demo or draft or flags.speculative_config is not None
    engine.setdefault("num_speculative_tokens", DEFAULT_K if proposes else 0)
    return Speculation(draft, revision, engine, size, without_effect)


def _from_sglang(flags: argparse.Namespace) -> Speculation:
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


def _is(kind: Any, value: Any) -> bool:
    """Return whether a value has one of the types, or is a list of such; bools are no numbers."""
    if isinstance(kind, list):
        return type(value) is list and all(_is(kind[0], item) for item in value)
    return type(value) in kind


NUMBER = (int, float)
SPECULATIVE_KEYS: Mapping[str, tuple[Any, str]] = {
    "model": ((str,), "a directory or a hub id"),
    "revision": ((str,), "a branch, tag or commit"),
    "method": ((str,), "'eagle3'"),
    "num_speculative_tokens": ((int,), "an integer"),
    "num_speculative_tokens_per_batch_size": (
        [(list,)],
        "a list of [first batch size, last batch size, k]",
    ),
    "draft_tensor_parallel_size": ((int,), "an integer"),
    "rejection_sample_method": ((str,), "a name"),
    "synthetic_acceptance_length": (NUMBER, "a number"),
    "synthetic_acceptance_rates": ([NUMBER], "a list of numbers"),
}
"""Keys of --speculative-config -> type and description of their values."""
