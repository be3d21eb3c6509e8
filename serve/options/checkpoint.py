"""Flags that control how checkpoints are loaded, for every command that loads a pair."""

import argparse
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
FLAGS = {
    "int4_order": "--int4-order",
    "aux_id_convention": "--aux-id-convention",
    "lm_head": "--draft-lm-head",
    "rope_theta": "--draft-rope-theta",
    "yarn_factor": "--draft-yarn-factor",
}
"""Flags of options that only drafts have; their defaults are LoadOptions'."""


@dataclass(frozen=True)
class LoadOptions:
    """Arguments of `convert.load_target` and `convert.load_draft`, with their defaults."""

    quantize_activations: "Activations" = True
    int4_order: "Int4OrderChoice" = "auto"
    aux_id_convention: "AuxIdConvention" = "auto"
    lm_head: "HeadChoice" = "auto"
    rope_theta: float | None = None
    yarn_factor: float | None = None

    @property
    def for_draft(self) -> dict[str, Any]:
        """Arguments that only `load_draft` has."""
        return {name: getattr(self, name) for name in FLAGS}


DEFAULTS = LoadOptions()


def add_load_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags as a group."""
    group = parser.add_argument_group("loading")
    group.add_argument(
        "--quantize-activations",
        choices=tuple(ACTIVATIONS),
        default="published",
        help="what quantised weights multiply: as published, plain floats, or for INT4 a choice",
    )
    group.add_argument(
        FLAGS["int4_order"],
        choices=("auto", "linear", "awq"),
        help="of a draft's INT4 per channel, which no file states; default: auto",
    )
    group.add_argument(
        FLAGS["aux_id_convention"],
        choices=("auto", "before", "after"),
        help="what the draft's config.json counts: outputs before or after a layer; default: auto",
    )
    group.add_argument(
        FLAGS["lm_head"],
        choices=("auto", "own", "target"),
        dest="lm_head",
        help="the head that the draft uses; default: auto",
    )
    for name, metavar, what in (
        ("rope_theta", "X", "rotary base"),
        ("yarn_factor", "F", "YaRN factor"),
    ):
        text = f"{what} in the place of config.json's"
        group.add_argument(FLAGS[name], type=_positive, metavar=metavar, dest=name, help=text)


def read_load_options(flags: argparse.Namespace, *, has_draft: bool) -> LoadOptions:
    """Read the group; ValueError, naming the flag, for a draft's option without a draft."""
    given = {name: value for name in FLAGS if (value := getattr(flags, name)) is not None}
    if given and not has_draft:
        listed = ", ".join(FLAGS[name] for name in given)
        raise ValueError(f"no draft is used, so there is nothing for {listed} to decide")
    return LoadOptions(ACTIVATIONS[flags.quantize_activations], **given)


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a positive number, got {text}")
    return number
