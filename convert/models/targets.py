"""Tensor names and config.json of each target's checkpoints."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from convert.models.kimi_k25 import kimi_rules, kimi_to_hf, published_kimi_name
from convert.models.llama import llama_rules, llama_to_hf
from convert.models.minimax_m2 import minimax_rules, minimax_to_hf
from convert.models.rules import Rule
from convert.published.exclude import unprefixed
from eagle3_jax.config import KimiConfig, MiniMaxConfig, TargetConfig
from eagle3_jax.config.llama import LlamaConfig


@dataclass(frozen=True)
class TargetFiles:
    """The checkpoint conventions of one target.

    `rules` returns a configuration's table. `canonical_name` returns the rules' name of a tensor in
    any spelling; `published_name` inverts it. `to_hf` returns config.json, given torch's dtype
    name.
    """

    rules: Callable[[Any], list[Rule]]
    canonical_name: Callable[[str], str]
    published_name: Callable[[str], str]
    to_hf: Callable[[Any, str], dict[str, Any]]


def _without_model_prefix(name: str) -> str:
    """Return the rules' name of a tensor, whose prefix may be absent."""
    return name.removeprefix("model.")


def _with_model_prefix(name: str) -> str:
    return name if name.startswith("lm_head.") else f"model.{name}"


FILES: Mapping[type[TargetConfig], TargetFiles] = {
    KimiConfig: TargetFiles(kimi_rules, unprefixed, published_kimi_name, kimi_to_hf),
    MiniMaxConfig: TargetFiles(
        minimax_rules, _without_model_prefix, _with_model_prefix, minimax_to_hf
    ),
    LlamaConfig: TargetFiles(llama_rules, _without_model_prefix, _with_model_prefix, llama_to_hf),
}


def target_files(config: TargetConfig) -> TargetFiles:
    """Return the conventions of the configuration's architecture."""
    return FILES[type(config)]
