"""Why two answers to one request differ: the tie rule of docs/architecture.md, applied.

Outside exact mode two programs may differ in the last bits of a score. A first difference must
then be a tie: (a) of processed score + noise within 1e-4, (b) a candidate within 1e-4 of a top-k,
top-p or min-p cut, or (c) a tie of the router within 1e-5. Anything else is an error.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from eagle3_jax import forward
from eagle3_jax.models.kimi import KimiTarget
from eagle3_jax.sampling import gumbel, process_logits
from eagle3_jax.sampling_params import SamplingParams
from eagle3_jax.sampling_rows import MAX_STOP_IDS, SamplingRows
from serve.bench.routing import router_margins, router_scores

SCORE_TOLERANCE = 1e-4
CUT_TOLERANCE = 1e-4
ROUTER_TOLERANCE = 1e-5

Cause = Literal["score", "cut", "router"]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """The first difference of two answers: index in the answer, both tokens (None: it had ended).

    cause: the tie that explains it, None for an error. score_margin: between the two tokens, with
    noise; router_margin: the least along the sequence.
    """

    request_id: str
    index: int
    tokens: tuple[int | None, int | None]
    cause: Cause | None
    score_margin: float
    router_margin: float


class Scorer:
    """Recomputes scores in float32 without a cache, for sequences of at most `max_len` tokens."""

    def __init__(self, target: KimiTarget, max_len: int) -> None:
        self._target = target
        self._max_len = max_len

    def explain(
        self,
        request_id: str,
        prompt: Sequence[int],
        sampling: SamplingParams,
        first: Sequence[int],
        second: Sequence[int],
    ) -> Difference | None:
        """The first difference of two answers, None when they are equal. The seed must be given."""
        index = first_difference(first, second)
        if index is None:
            return None
        pair = _token(first, index), _token(second, index)
        prefix = [*prompt, *first[:index]]
        scores, noise, router = self._recompute(prefix, sampling)
        margin = np.inf
        if pair[0] is not None and pair[1] is not None:
            noisy = scores + noise
            margin = float(abs(noisy[pair[0]] - noisy[pair[1]]))
        cause = tie_cause(scores, pair, margin, router, sampling)
        return Difference(request_id, index, pair, cause, margin, router)

    def _recompute(
        self, prefix: list[int], sampling: SamplingParams
    ) -> tuple[Floats, Floats, float]:
        """Unfiltered scores and noise of the next token, and the router's least margin so far."""
        # One length, one program: what follows a causal prefix doesn't matter.
        padded = jnp.asarray([prefix + [0] * (self._max_len - len(prefix))])
        logits = forward(self._target, padded).logits[:, len(prefix) - 1 : len(prefix)]
        position = jnp.asarray([[len(prefix)]])
        rows = _unfiltered(sampling)
        scores = np.asarray(process_logits(logits, position, rows), np.float64)[0, 0]
        ids = jnp.arange(scores.shape[0])
        noise = np.asarray(gumbel(rows.seed[:, None], position, ids), np.float64)[0, 0]
        routed = np.asarray(router_scores(self._target, padded))[:, :, : len(prefix)]
        margins = router_margins(routed, self._target.config.num_experts_per_tok)
        return scores, noise * (sampling.temperature > 0), float(margins.min(initial=np.inf))


def first_difference(first: Sequence[int], second: Sequence[int]) -> int | None:
    """The first index at which two answers differ, one of them being over included."""
    if list(first) == list(second):
        return None
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))


def tie_cause(
    scores: Floats,
    tokens: tuple[int | None, int | None],
    score_margin: float,
    router_margin: float,
    sampling: SamplingParams,
) -> Cause | None:
    """Which tie explains a difference between `tokens`; scores are those before any filter.

    An answer that ended where the other went on is never a tie.
    """
    if tokens[0] is None or tokens[1] is None:
        return None
    if score_margin <= SCORE_TOLERANCE:
        return "score"
    if near_cut(scores, [tokens[0], tokens[1]], sampling):
        return "cut"
    return "router" if router_margin <= ROUTER_TOLERANCE else None


def near_cut(scores: Floats, tokens: Sequence[int], sampling: SamplingParams) -> bool:
    """Whether moving scores or mass by the tolerance could filter one of `tokens` or keep it.

    scores: log-probabilities up to a constant, already over the temperature.
    """
    if sampling.temperature == 0:
        return False
    scores = scores - scores.max()
    if sampling.min_p > 0:
        cut = np.log(sampling.min_p)
        # Any candidate at this cut counts: it also moves the mass that top-p measures.
        if np.any(np.abs(scores - cut) <= CUT_TOLERANCE):
            return True
        scores = np.where(scores >= cut, scores, -np.inf)
    if sampling.top_k > 0:
        if any(_rank_is_unsure(scores, token, sampling.top_k) for token in tokens):
            return True
        kth = np.sort(scores)[-min(sampling.top_k, len(scores))]
        scores = np.where(scores >= kth, scores, -np.inf)
    weights = np.exp(scores)
    shares = weights / weights.sum()
    return sampling.top_p < 1 and any(
        _mass_is_unsure(scores, shares, token, sampling.top_p) for token in tokens
    )


def _better(scores: Floats, token: int, margin: float) -> NDArray[np.bool_]:
    """Who outranks `token` by more than `margin`; the token itself never does."""
    better = scores > scores[token] + margin
    better[token] = False
    return better


def _rank_is_unsure(scores: Floats, token: int, top_k: int) -> bool:
    surely = np.count_nonzero(_better(scores, token, CUT_TOLERANCE))
    perhaps = np.count_nonzero(_better(scores, token, -CUT_TOLERANCE))
    return bool(surely < top_k <= perhaps)


def _mass_is_unsure(scores: Floats, shares: Floats, token: int, top_p: float) -> bool:
    """A token is in the nucleus while those that outrank it have not reached the mass."""
    if not np.isfinite(scores[token]):
        return False
    least = shares[_better(scores, token, CUT_TOLERANCE)].sum() - CUT_TOLERANCE
    most = shares[_better(scores, token, -CUT_TOLERANCE)].sum() + CUT_TOLERANCE
    return bool(least < top_p <= most)


def _token(answer: Sequence[int], index: int) -> int | None:
    return answer[index] if index < len(answer) else None


def _unfiltered(sampling: SamplingParams) -> SamplingRows:
    """The options that scale and seed, without those that filter or mask."""
    assert sampling.seed is not None, "only seeded requests can be compared"
    seed = sampling.seed % 2**64
    return SamplingRows(
        temperature=jnp.asarray([sampling.temperature], jnp.float32),
        top_p=jnp.ones((1,), jnp.float32),
        min_p=jnp.zeros((1,), jnp.float32),
        top_k=jnp.zeros((1,), jnp.int32),
        seed=jnp.asarray([[seed % 2**32, seed >> 32]], jnp.uint32),
        min_len=jnp.zeros((1,), jnp.int32),
        stop_ids=jnp.full((1, MAX_STOP_IDS), -1, jnp.int32),
    )
