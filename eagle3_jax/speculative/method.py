"""Static choices of rounds: the speculation method, tree size, widths and program variants."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Literal, NamedTuple, get_args


class Widths(NamedTuple):
    """Sizes of a round in an engine that chooses k per round, or looks up drafts.

    `drafts` is k'. `first_rows` are the rows of the draft's first pass, at least 1 + the drafts of
    the widest previous round of its sequences (0 for a prefill). `lookup` is the number of tokens
    that may be looked up in place of the drafts.
    """

    drafts: int
    first_rows: int
    lookup: int = 0

    @property
    def verified(self) -> int:
        """Maximum drafts that the round verifies per sequence."""
        return max(self.drafts, self.lookup)


class Lookup(NamedTuple):
    """Number of last tokens that must have occurred before: the longest of `shortest`..`longest`.

    The tokens that followed them are the drafts.
    """

    shortest: int
    longest: int


class Variant(Enum):
    """Kind of a program, by the request options that it supports.

    LEAN: the options that every row has (eagle3_jax.sampling.rows).
    FULL: also logit controls (eagle3_jax.speculative.logit_controls) and logprobs.
    ARGMAX: tokens are chosen in the head's kernel without writing logits. It supports temperature,
        min-p, biases and a few stop ids before min_len (eagle3_jax.speculative.head_choice).
    """

    LEAN = "lean"
    FULL = "full"
    ARGMAX = "argmax"


MAX_EAGLE_TOPK = 16
MAX_DRAFT_TOKENS = 64


class TreeShape(NamedTuple):
    """Size of a tree, static per program; its parents are data.

    Each step expands `topk` nodes to `topk` children each. The target verifies `num_draft_tokens`
    nodes, including the root.
    """

    topk: int
    num_draft_tokens: int

    def scratch_rows(self, levels: int) -> int:
        """KV rows past the committed ones that a round with this many levels writes."""
        return max(self.num_draft_tokens, (levels - 1) * self.topk)


def tree_shape(topk: int, num_draft_tokens: int | None, levels: int) -> TreeShape | None:
    """Return the shape of trees with `levels` levels below the root, or None (chains) if topk is 1.

    Raises ValueError for an impossible size.
    """
    if not 1 <= topk <= MAX_EAGLE_TOPK:
        raise ValueError(f"eagle_topk must be 1..{MAX_EAGLE_TOPK}; got {topk}")
    if topk == 1:
        if num_draft_tokens not in (None, levels + 1):
            raise ValueError(
                "num_draft_tokens counts the verified token too: with eagle_topk 1 and "
                f"{levels} drafts it must be {levels + 1}; got {num_draft_tokens}"
            )
        return None
    if levels < 1:
        raise ValueError(f"eagle_topk {topk} needs num_speculative_tokens of at least 1")
    most = min(1 + topk + (levels - 1) * topk**2, MAX_DRAFT_TOKENS)
    if num_draft_tokens is None or not 2 <= num_draft_tokens <= most:
        raise ValueError(
            f"num_draft_tokens must be 2..{most} with eagle_topk {topk} and {levels} steps: the "
            f"nodes to verify, the verified token among them; got {num_draft_tokens}"
        )
    return TreeShape(topk, num_draft_tokens)


RejectionSampleMethod = Literal["coupled", "standard", "block", "synthetic"]
METHODS: tuple[RejectionSampleMethod, ...] = get_args(RejectionSampleMethod)
DRAFT_SAMPLE_METHODS = ("probabilistic", "greedy")


@dataclass(frozen=True)
class SpeculationMethod:
    """Acceptance rule and draft shape; static under jit and part of the programs' keys.

    Attributes:
        rejection_sample_method: Rule for accepting drafts. coupled: the target picks them with the
            same noise. standard: rejection sampling on p / q, token by token. block: all drafts
            of a round together. synthetic: the given rates.
        synthetic_acceptance_rates: Entry i is the probability of accepting the first i + 1 drafts.
        tree: Size of the draft trees; None for chains.
        greedy_drafts: Drafts are the draft's best tokens at any temperature, q is one-hot.
        lookup: Rule of drafts that are looked up in the sequence's own tokens; None without.
    """

    rejection_sample_method: RejectionSampleMethod = "coupled"
    synthetic_acceptance_rates: tuple[float, ...] | None = None
    tree: TreeShape | None = None
    greedy_drafts: bool = False
    lookup: Lookup | None = None

    @property
    def needs_probs(self) -> bool:
        """True if drafts keep the probabilities that they were drawn from."""
        return self.rejection_sample_method in ("standard", "block")

    @property
    def needs_logits(self) -> bool:
        """True if verification needs more of the target than its choice at each row of a chain."""
        return self.needs_probs or self.tree is not None

    @property
    def synthetic_acceptance_length(self) -> float | None:
        """Mean tokens that a synthetic round commits; None if acceptance is real."""
        rates = self.synthetic_acceptance_rates
        return None if rates is None else 1 + sum(rates)


COUPLED = SpeculationMethod()


def speculation_method(
    name: str,
    num_speculative_tokens: int,
    acceptance_length: float | None = None,
    acceptance_rates: Sequence[float] | None = None,
) -> SpeculationMethod:
    """Make the method of this name for k drafts a round, from arguments named as in vLLM.

    `acceptance_length` is the mean tokens that a round commits, 1 to k + 1. `acceptance_rates` are
    k non-increasing numbers. Raises ValueError for an unknown name, for synthetic without exactly
    one of the two, and for other methods with one of them.
    """
    if name not in METHODS:
        listed = ", ".join(METHODS)
        raise ValueError(f"rejection_sample_method must be one of {listed}; got {name!r}")
    method: RejectionSampleMethod = name
    given = acceptance_length is not None, acceptance_rates is not None
    if method != "synthetic":
        if any(given):
            raise ValueError(
                "synthetic_acceptance_length and synthetic_acceptance_rates need "
                f"rejection_sample_method 'synthetic'; it is {method!r}"
            )
        return SpeculationMethod(method)
    if num_speculative_tokens < 1:
        raise ValueError("rejection_sample_method 'synthetic' needs a draft and k of at least 1")
    if sum(given) != 1:
        raise ValueError(
            "rejection_sample_method 'synthetic' needs one of synthetic_acceptance_length and "
            f"synthetic_acceptance_rates; got {sum(given)} of them"
        )
    if acceptance_rates is not None:
        rates = _checked_rates(acceptance_rates, num_speculative_tokens)
    else:
        assert acceptance_length is not None, "one of the two is given"
        rates = _least_variance_rates(acceptance_length, num_speculative_tokens)
    return SpeculationMethod(method, rates)


def _least_variance_rates(length: float, num_speculative_tokens: int) -> tuple[float, ...]:
    """Return rates with this mean length whose rounds differ by at most one token."""
    most = num_speculative_tokens + 1
    if isinstance(length, bool) or not 1 <= length <= most:
        raise ValueError(
            "synthetic_acceptance_length must be in [1, num_speculative_tokens + 1] = "
            f"[1, {most}]; got {length!r}"
        )
    fraction, whole = math.modf(length - 1)
    rates = [1.0] * int(whole) + [fraction] + [0.0] * num_speculative_tokens
    return tuple(rates[:num_speculative_tokens])


def _checked_rates(rates: Sequence[float], num_speculative_tokens: int) -> tuple[float, ...]:
    in_range = all(0 <= rate <= 1 for rate in rates)
    falling = all(before >= after for before, after in pairwise(rates))
    if len(rates) != num_speculative_tokens or not (in_range and falling):
        raise ValueError(
            f"synthetic_acceptance_rates must be {num_speculative_tokens} numbers in [0, 1] that "
            f"do not rise, one a draft; got {list(rates)!r}"
        )
    return tuple(float(rate) for rate in rates)
