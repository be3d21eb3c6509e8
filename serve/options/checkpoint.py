"""Options that control how checkpoints are loaded, for every command that loads a pair."""

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from convert.command_line.options import POSITIVE, flags_of, option, values_of

if TYPE_CHECKING:
    # Types only: flags are read before anything imports JAX.
    from convert.abstract_model import Activations
    from convert.pairing import HeadChoice
    from convert.published.weights import Int4OrderChoice
    from eagle3_jax.config import AuxIdConvention

ACTIVATIONS: dict[str, "Activations"] = {
    "published": True,
    "none": False,
    "int8": "int8",
    "fp8": "fp8",
}


@dataclass(frozen=True)
class LoadOptions:
    """Arguments of `convert.load_target` and `convert.load_draft`, with their defaults.

    All but `quantize_activations` are only the draft's.
    """

    quantize_activations: "Activations" = option(
        "--quantize-activations",
        "activations that quantised weights multiply: as published (the default), not quantised, "
        "or for INT4 weights a format",
        default=True,
        choices=tuple(ACTIVATIONS),
        unset=True,
    )
    int4_order: "Int4OrderChoice" = option(
        "--int4-order",
        "nibble order of a draft's INT4 weights per channel, which no file states; default: auto",
        default="auto",
        choices=("auto", "linear", "awq"),
        unset=True,
    )
    aux_id_convention: "AuxIdConvention" = option(
        "--aux-id-convention",
        "whether the draft's config.json counts outputs before or after a layer; default: auto",
        default="auto",
        choices=("auto", "before", "after"),
        unset=True,
    )
    lm_head: "HeadChoice" = option(
        "--draft-lm-head",
        "the head that the draft uses; default: auto",
        default="auto",
        choices=("auto", "own", "target"),
        unset=True,
    )
    rope_theta: float | None = option(
        "--draft-rope-theta X", "rotary base that replaces the draft's", POSITIVE
    )
    yarn_factor: float | None = option(
        "--draft-yarn-factor F", "YaRN factor that replaces the draft's", POSITIVE
    )

    @property
    def for_draft(self) -> dict[str, Any]:
        """Arguments that only `load_draft` has."""
        return {name: value for name, value in vars(self).items() if name != "quantize_activations"}


DEFAULTS = LoadOptions()


def read_load_options(flags: argparse.Namespace, *, has_draft: bool) -> LoadOptions:
    """Read the table; ValueError, naming the flag, for a draft's option without a draft."""
    given = values_of(LoadOptions, flags)
    activations = ACTIVATIONS[given.pop("quantize_activations", "published")]
    if given and not has_draft:
        listed = ", ".join(flags_of(LoadOptions)[name] for name in given)
        raise ValueError(f"{listed} needs a draft: give one with --draft or --speculative-config")
    return LoadOptions(activations, **given)
