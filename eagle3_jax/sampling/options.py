"""What is said once of each request option: SamplingParams is the table, an option is a row of it.

Request bodies, sampling defaults, flags, packing, the choice of programs and the reference follow.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any


class AppliedBy(Enum):
    """Who applies an option. A program that does not must not run where the option is set."""

    HOST = "the host"
    EVERY_PROGRAM = "every program"
    """Also those that choose tokens in the head's kernel and write no logits."""
    SAMPLER = "programs that write logits"
    FULL_PROGRAMS = "full programs"
    LOGIT_CONTROLS = "full programs, by token ids"
    """Through the rows of eagle3_jax.speculative.logit_control_rows."""


@dataclass(frozen=True)
class RequestOption:
    """One row. expected, holds: the values it may have, in words and as a check. off: those that do
    nothing. filters: it bars candidates of sampled tokens, and nothing of a greedy request.

    json: its type in request bodies and of its flag, None where the endpoints spell it in a form of
    their own. generation_config: its name in a checkpoint's generation_config.json, if it has one.
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
    """The field of an option, whose default does nothing. Who applies it has no default: what is
    forgotten there would be lost in programs that do not know the option."""
    off = (default, *also_off)
    row = RequestOption(expected, holds, applied_by, meaning, off, filters, json, generation_config)
    return field(default=default, metadata={"option": row})


def options_of(table: type) -> dict[str, RequestOption]:
    """The rows of a class, by name. Raises TypeError for a field that is no `option`."""
    rows = {entry.name: entry.metadata.get("option") for entry in fields(table)}
    missing = [name for name, row in rows.items() if row is None]
    if missing:
        raise TypeError(f"{table.__name__}: {missing} must be declared by sampling.options.option")
    return {name: row for name, row in rows.items() if row}
