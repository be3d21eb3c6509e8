"""What the flags of speculation mean, those of vLLM and those of SGLang."""

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_SPECULATIVE_TOKENS = 8
DEFAULT_SPECULATIVE_TOKENS = 3
SPECULATIVE_KEYS = (
    "model",
    "method",
    "num_speculative_tokens",
    "num_speculative_tokens_per_batch_size",
    "draft_tensor_parallel_size",
    "rejection_sample_method",
    "synthetic_acceptance_length",
    "synthetic_acceptance_rates",
)
DRAFT_KEYS = ("quantization", "max_model_len", "kv_cache_dtype")
"""vLLM's keys of the draft alone: here its tensors say how they are quantised, and it shares the
target's length and cache dtype."""
METHOD_KEYS = (
    "rejection_sample_method",
    "synthetic_acceptance_length",
    "synthetic_acceptance_rates",
)
"""Which drafts a round accepts (eagle3_jax.speculative.method)."""


@dataclass(frozen=True)
class Speculation:
    """Which draft proposes (None: the embedded one, or none), and k tokens a round.

    k = 0 is plain decoding. A table has rows (first batch size, last batch size, smaller k).
    acceptance: those of METHOD_KEYS that were given.
    eagle_topk above 1: trees k levels deep, of which num_draft_tokens nodes are verified.
    draft_tensor_parallel_size: devices that share the draft, None for as many as the target.
    without_effect: keys that were given and change nothing.
    """

    draft: str | None
    num_speculative_tokens: int
    num_speculative_tokens_per_batch_size: tuple[tuple[int, int, int], ...] | None = None
    acceptance: Mapping[str, Any] = field(default_factory=dict)
    eagle_topk: int = 1
    num_draft_tokens: int | None = None
    draft_tensor_parallel_size: int | None = None
    without_effect: tuple[str, ...] = ()


def read_speculative_config(text: str, kv_cache_dtype: str) -> Speculation:
    """Reads the JSON of --speculative-config; ValueError for what this release can't do.

    kv_cache_dtype: the target's.
    """
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"--speculative-config is not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"--speculative-config must be a JSON object; got {text}")
    known = (*SPECULATIVE_KEYS, *DRAFT_KEYS)
    unknown = sorted(set(config) - set(known))
    if unknown:
        keys = ", ".join(known)
        raise ValueError(f"--speculative-config: unknown keys {unknown}; there are {keys}")
    _require_value("--speculative-config method", config.get("method", "eagle3"), "eagle3")
    draft = config.get("model")
    if not isinstance(draft, str | None):
        raise ValueError(f"--speculative-config model must be a directory; got {draft!r}")
    count = check_num_speculative_tokens(
        config.get("num_speculative_tokens", DEFAULT_SPECULATIVE_TOKENS)
    )
    table = config.get("num_speculative_tokens_per_batch_size")
    return Speculation(
        draft,
        count,
        None if table is None else _read_table(table, count),
        check_acceptance({key: config.get(key) for key in METHOD_KEYS}, count),
        draft_tensor_parallel_size=config.get("draft_tensor_parallel_size"),
        without_effect=_without_effect(config, kv_cache_dtype),
    )


def _without_effect(config: Mapping[str, Any], kv_cache_dtype: str) -> tuple[str, ...]:
    dtype = config.get("kv_cache_dtype")
    same = str(dtype).removesuffix("_e4m3") == kv_cache_dtype.removesuffix("_e4m3")
    if dtype is not None and not same:
        raise ValueError(
            "--speculative-config kv_cache_dtype: target and draft share pages of one dtype, that "
            f"of --kv-cache-dtype, {kv_cache_dtype!r}; got {dtype!r}"
        )
    return tuple(key for key in DRAFT_KEYS if config.get(key) is not None)


def check_acceptance(given: Mapping[str, Any], num_speculative_tokens: int) -> dict[str, Any]:
    """The options of METHOD_KEYS that are not None; ValueError where they contradict each other."""
    found = {key: value for key, value in given.items() if value is not None}
    if found:
        # Only here: flags are read before anything imports JAX.
        from eagle3_jax.speculative.method import speculation_method

        rates = found.get("synthetic_acceptance_rates")
        if rates is not None:
            found["synthetic_acceptance_rates"] = _read_rates(rates)
        name = found.get("rejection_sample_method", "coupled")
        length = found.get("synthetic_acceptance_length")
        if not isinstance(length, int | float | None):
            raise ValueError(f"synthetic_acceptance_length must be a number; got {length!r}")
        speculation_method(
            name, num_speculative_tokens, length, found.get("synthetic_acceptance_rates")
        )
    return found


def _read_rates(rates: Any) -> tuple[float, ...]:
    if not isinstance(rates, list) or not all(type(rate) in (int, float) for rate in rates):
        raise ValueError(f"synthetic_acceptance_rates must be a list of numbers; got {rates!r}")
    return tuple(rates)


def _read_table(rows: Any, most: int) -> tuple[tuple[int, int, int], ...]:
    # Only here: flags are read before anything imports JAX.
    from eagle3_jax.engine.batch_size_table import check_table

    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise ValueError(
            "--speculative-config num_speculative_tokens_per_batch_size must be a list of "
            f"[first batch size, last batch size, k]; got {rows!r}"
        )
    return check_table(rows, most)


def check_num_speculative_tokens(count: Any) -> int:
    """Returns k; ValueError outside 0..8."""
    if type(count) is not int or not 0 <= count <= MAX_SPECULATIVE_TOKENS:
        raise ValueError(
            f"num_speculative_tokens must be an integer in 0..{MAX_SPECULATIVE_TOKENS}; "
            f"got {count!r}"
        )
    return count


def check_adaptive(flags: argparse.Namespace, speculation: Speculation, *, proposes: bool) -> bool:
    """--adaptive; ValueError where there is nothing to choose, or something else chooses k."""
    table = speculation.num_speculative_tokens_per_batch_size is not None
    if flags.adaptive and not proposes:
        raise ValueError("--adaptive needs a draft and num_speculative_tokens of at least 1")
    if flags.adaptive and table:
        raise ValueError(
            "--adaptive chooses k itself: leave out num_speculative_tokens_per_batch_size"
        )
    name = "--adaptive" if flags.adaptive else "num_speculative_tokens_per_batch_size"
    if flags.exact and (flags.adaptive or table):
        raise ValueError(f"--exact has one width, so {name} can't change k")
    synthetic = speculation.acceptance.get("rejection_sample_method") == "synthetic"
    if synthetic and (flags.adaptive or table):
        raise ValueError(f"synthetic acceptance is a schedule for one k, which {name} would change")
    return flags.adaptive


def read_speculation(flags: argparse.Namespace) -> Speculation:
    sglang = {
        k: v for k, v in vars(flags).items() if k.startswith("speculative_") and v is not None
    }
    config = sglang.pop("speculative_config", None)
    if config is not None and sglang:
        names = ", ".join("--" + name.replace("_", "-") for name in sglang)
        raise ValueError(f"--speculative-config already says everything; leave out {names}")
    if config is not None:
        speculation = read_speculative_config(config, flags.kv_cache_dtype)
    elif sglang:
        speculation = _from_sglang(flags)
    else:
        speculation = Speculation(None, DEFAULT_SPECULATIVE_TOKENS if flags.demo else 0)
    if flags.demo and speculation.draft:
        raise ValueError("--demo brings its own draft; leave the draft's directory out")
    has_draft = flags.demo or speculation.draft
    # In exact mode k is also the width of plain decoding's program: no draft then, only rows.
    if speculation.num_speculative_tokens and not has_draft and not flags.exact:
        raise ValueError("speculation needs a draft: the key `model` of --speculative-config")
    check_exact(flags.exact, speculation.acceptance)
    return speculation


def check_exact(exact: bool, acceptance: Mapping[str, Any]) -> None:
    """ValueError for exact mode with another method than coupled."""
    method = acceptance.get("rejection_sample_method", "coupled")
    if exact and method != "coupled":
        raise ValueError(
            "--exact promises the tokens of plain decoding, which only rejection_sample_method "
            f"'coupled' keeps; got {method!r}"
        )


def _from_sglang(flags: argparse.Namespace) -> Speculation:
    algorithm = flags.speculative_algorithm
    _require_value("--speculative-algorithm", algorithm and algorithm.upper(), "EAGLE3")
    if flags.speculative_eagle_topk not in (None, 1):
        return _read_tree(flags)
    steps, draft_tokens = flags.speculative_num_steps, flags.speculative_num_draft_tokens
    if steps is None:
        steps = DEFAULT_SPECULATIVE_TOKENS if draft_tokens is None else draft_tokens - 1
    if draft_tokens not in (None, steps + 1):
        raise ValueError(
            "--speculative-num-draft-tokens counts the verified token too: with "
            f"--speculative-num-steps {steps} it must be {steps + 1}; got {draft_tokens}"
        )
    return Speculation(flags.speculative_draft_model_path, check_num_speculative_tokens(steps))


def _read_tree(flags: argparse.Namespace) -> Speculation:
    for name in ("exact", "adaptive"):
        if getattr(flags, name):
            raise ValueError(f"--{name} works on chains: --speculative-eagle-topk must be 1")
    topk, nodes = flags.speculative_eagle_topk, flags.speculative_num_draft_tokens
    steps = flags.speculative_num_steps
    steps = check_num_speculative_tokens(DEFAULT_SPECULATIVE_TOKENS if steps is None else steps)
    # Only here: flags are read before anything imports JAX.
    from eagle3_jax.speculative.tree_shape import tree_shape

    try:
        tree_shape(topk, nodes, steps)
    except ValueError as error:
        raise ValueError(f"SGLang's flags of a tree: {error}") from error
    draft = flags.speculative_draft_model_path
    return Speculation(draft, steps, eagle_topk=topk, num_draft_tokens=nodes)


def _require_value(name: str, value: object, supported: object) -> None:
    if value != supported:
        raise ValueError(f"{name}: this release has only {supported!r}; got {value!r}")
