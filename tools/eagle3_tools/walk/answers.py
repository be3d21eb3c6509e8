"""Answers of a walk's part, and their comparison with those of another device."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from eagle3_jax.sampling.params import SamplingParams
from eagle3_tools.bench.equality.ties import Scorer, describe, first_difference

RELATIVE = 0.02
"""Two numbers of a part, such as a training loss, may differ by so much."""

APART = 1
"""Accepted drafts of one answer may differ by so many: a draft model's ties are not recomputed."""


@dataclass(frozen=True)
class Answer:
    """Token ids of a prompt and its answer, and the drafts accepted for it.

    `sampling` are fields of `SamplingParams`. `target` is the directory whose scores may explain
    another answer as a tie; without one (grammars, images) the tokens must be equal.
    """

    name: str
    prompt: list[int]
    tokens: list[int]
    accepted: int
    sampling: dict[str, Any] = field(default_factory=dict)
    target: str | None = None


@dataclass(frozen=True)
class Found:
    """Results of a part: answers, and facts that must be equal, or near if they are not whole."""

    answers: Sequence[Answer] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the fields of a record's line, which names no directory."""
        answers = [asdict(answer) for answer in self.answers]
        for answer in answers:
            del answer["target"]
        return {"answers": answers, "facts": {**self.facts}}


def differences(
    found: Found, expected: Mapping[str, Any], scorer_of: Callable[[Path], Scorer]
) -> tuple[list[str], list[str]]:
    """Compare with the line of another run; return the ties and the errors as text.

    `scorer_of` makes the scorer of a target; answers before their first difference are enough.
    """
    ties: list[str] = []
    errors = [
        f"{name}: {found.facts.get(name)!r}, expected {value!r}"
        for name, value in expected["facts"].items()
        if not _near(found.facts.get(name), value)
    ]
    theirs = {answer["name"]: answer for answer in expected["answers"]}
    if theirs.keys() != {answer.name for answer in found.answers}:
        errors.append(f"answers to {', '.join(a.name for a in found.answers)}")
    for answer in found.answers:
        other = theirs.get(answer.name, asdict(answer))
        tie, text = _difference(answer, other, scorer_of)
        if text:
            (ties if tie else errors).append(text)
    return ties, errors


def _difference(
    answer: Answer, other: Mapping[str, Any], scorer_of: Callable[[Path], Scorer]
) -> tuple[bool, str]:
    """Return whether a difference is a tie, and its description, which is empty without one."""
    if answer.prompt != other["prompt"]:
        return False, f"{answer.name}: another prompt"
    index = first_difference(other["tokens"], answer.tokens)
    if index is None:
        apart = abs(answer.accepted - other["accepted"])
        counts = f"{answer.accepted} drafts accepted, expected {other['accepted']}"
        return apart <= APART, f"{answer.name}: {counts}" if apart else ""
    if answer.target is None:
        tokens = (
            f"{answer.tokens[index : index + 4]}, expected {other['tokens'][index : index + 4]}"
        )
        return False, f"{answer.name}: from token {index} on {tokens}"
    sampling = SamplingParams(**answer.sampling)
    found = scorer_of(Path(answer.target)).explain(
        answer.name, answer.prompt, sampling, other["tokens"], answer.tokens
    )
    assert found, "the tokens differ"
    return found.cause is not None, describe(found)


def _near(found: Any, expected: Any) -> bool:
    if isinstance(expected, float) and isinstance(found, float):
        return math.isclose(found, expected, rel_tol=RELATIVE)
    return found == expected
