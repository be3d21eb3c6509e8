"""Declaration of request options: SamplingParams is the table, each option is one row.

Request bodies, defaults, flags, packing, choice of programs and the reference follow from it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

MAX_STOP_IDS = 8
"""Stop ids that the device checks itself; the host checks all of them."""
MAX_REQUEST_STOP_IDS = 64
"""Ids that may end one request, EOS ids included."""
MAX_BAD_WORDS = 128
MAX_BAD_WORD_TOKENS = 16
MAX_KERNEL_BIASES = 32
"""Ids with a bias that a token-choosing kernel supports; more of them need full logits."""
MAX_LOGPROBS = 20
"""Best tokens whose log-probabilities a request may ask for at every position."""


class AppliedBy(Enum):
    """The component that applies an option; a program that ignores a set option must not run."""

    HOST = "the host"
    EVERY_PROGRAM = "every program"
    """Includes programs that choose tokens in the head's kernel and write no logits."""
    SAMPLER = "programs that write logits"
    FULL_PROGRAMS = "full programs"
    LOGIT_CONTROLS = "full programs, by token ids"
    """Applied through the rows of eagle3_jax.speculative.logit_control_rows."""


@dataclass(frozen=True)
class RequestOption:
    """Declaration of one request option.

    `expected` describes valid values and `holds` checks them; `off` values have no effect. With
    `filters` it bars candidates of sampled tokens, without effect on greedy requests. `json` is the
    type in bodies and of the flag, None if endpoints have their own form. `generation_config` is
    the name in a checkpoint's generation_config.json, if any.
    """

    expected: str
    holds: Callable[[Any], bool]
    applied_by: AppliedBy
    meaning: str
    off: tuple[Any, ...]
    filters: bool
    json: Any
    generation_config: str | None


def option(
    default: Any,
    expected: str,
    holds: Callable[[Any], bool],
    *,
    applied_by: AppliedBy,
    meaning: str,
    also_off: tuple[Any, ...] = (),
    filters: bool = False,
    json: Any = None,
    generation_config: str | None = None,
) -> Any:
    """Declare an option as a field whose default has no effect.

    `applied_by` is required: a program that does not know the option would silently ignore it.
    """
    off = (default, *also_off)
    row = RequestOption(expected, holds, applied_by, meaning, off, filters, json, generation_config)
    return field(default=default, metadata={"option": row})


def options_of(table: type) -> dict[str, RequestOption]:
    """Return the options of a class by name; raise TypeError for a field without `option`."""
    rows = {entry.name: entry.metadata.get("option") for entry in fields(table)}
    missing = [name for name, row in rows.items() if row is None]
    if missing:
        raise TypeError(f"{table.__name__}: {missing} must be declared by sampling.options.option")
    return {name: row for name, row in rows.items() if row}
