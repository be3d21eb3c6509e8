"""Compare the accept lengths of two drafts on the same prompts."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convert.load import load_draft, load_target
from convert.text.tokenizer import load_tokenizer
from eagle3_jax.generation import Generation, generate
from eagle3_jax.sampling.params import SamplingParams


@dataclass(frozen=True)
class AcceptChange:
    """Accept lengths of two drafts: 1 + accepted drafts / rounds, with greedy sampling."""

    first: float
    second: float
    first_rounds: int
    second_rounds: int
    prompts: int
    num_speculative_tokens: int


def accept_change(
    target: Path,
    first: Path,
    second: Path,
    prompts: Path,
    *,
    max_tokens: int = 64,
    num_speculative_tokens: int = 3,
) -> AcceptChange:
    """Complete every prompt with both drafts; ValueError if a model cannot be loaded."""
    token_ids = read_prompts(prompts, target)
    model = load_target(target)
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens)

    def measure(draft: Path) -> tuple[float, int]:
        answers = generate(
            model,
            load_draft(draft, model),
            token_ids,
            sampling,
            num_speculative_tokens=num_speculative_tokens,
        )
        return accept_length(answers)

    (ours, our_rounds), (theirs, their_rounds) = measure(first), measure(second)
    return AcceptChange(
        ours, theirs, our_rounds, their_rounds, len(token_ids), num_speculative_tokens
    )


def accept_length(answers: Sequence[Generation]) -> tuple[float, int]:
    """Return (1 + accepted / rounds, rounds) over all answers; 1 if there was no round."""
    accepted = [count for answer in answers for count in answer.accepted]
    return 1 + sum(accepted) / max(len(accepted), 1), len(accepted)


def read_prompts(path: Path, target: Path) -> list[list[int]]:
    """Read prompts from JSON lines, as token ids or as texts for the target's tokenizer.

    A line is a list of ids, a string, or an object with `token_ids` or `prompt`; else ValueError.
    """
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    entries = [_entry(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]
    if not entries:
        raise ValueError(f"{path} holds no prompts")
    if any(isinstance(entry, str) for entry in entries):
        encode = load_tokenizer(target).encode
        return [encode(entry) if isinstance(entry, str) else entry for entry in entries]
    return [entry for entry in entries if not isinstance(entry, str)]


def _entry(line: str, where: str) -> str | list[int]:
    try:
        entry: Any = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where} is not JSON: {error}") from error
    if isinstance(entry, dict):
        entry = entry.get("token_ids", entry.get("prompt"))
    ids = isinstance(entry, list) and entry and all(type(token) is int for token in entry)
    if not ids and not isinstance(entry, str):
        raise ValueError(f"{where} is neither text nor a list of token ids: {line[:60]}")
    return entry


def accept_text(change: AcceptChange) -> str:
    """Return both accept lengths and their difference."""
    return (
        f"accept length A {change.first:.3f}, B {change.second:.3f}, change "
        f"{change.first - change.second:+.3f} ({change.prompts} prompts, "
        f"{change.first_rounds} and {change.second_rounds} rounds, "
        f"k = {change.num_speculative_tokens})"
    )
