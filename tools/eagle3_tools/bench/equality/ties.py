"""The tie rule: decide whether rounding explains that two answers to a request differ.

Outside exact mode two programs may differ in the last bits of a score. A first difference must then
be a tie: (a) of processed score + noise within 1e-4, (b) a candidate within 1e-4 of a top-k, top-p
or min-p cut, or (c) a tie of the router within 1e-5. Anything else is an error.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from eagle3_jax import forward
from eagle3_jax.engine import Request
from eagle3_jax.engine.programs.packing import pack_controls, pack_options
from eagle3_jax.engine.sequence import Sequence as EngineSequence
from eagle3_jax.models.target import Target
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.sampling.rows import filters_off
from eagle3_jax.sampling.sampler import gumbel, process_logits
from eagle3_jax.speculative.logit_controls import control_logits
from eagle3_tools.bench.equality.routing import router_margins, router_scores

SCORE_TOLERANCE = 1e-4
CUT_TOLERANCE = 1e-4
ROUTER_TOLERANCE = 1e-5

Cause = Literal["score", "cut", "router"]
Floats = NDArray[np.float64]
Features = Sequence[jax.Array]


@dataclass(frozen=True)
class Difference:
    """The first difference of two answers, at `index`; a token is None if its answer had ended.

    `cause` is the tie that explains it, None for an error. `score_margin` is between the two
    tokens, with noise; `router_margin` is the smallest in the sequence.
    """

    request_id: str
    index: int
    tokens: tuple[int | None, int | None]
    cause: Cause | None
    score_margin: float
    router_margin: float


def describe(difference: Difference) -> str:
    """Return a one-line description."""
    cause = f"a {difference.cause} tie" if difference.cause else "not a tie"
    return (
        f"{difference.request_id}: token {difference.index} is {difference.tokens[0]} or "
        f"{difference.tokens[1]}, {cause} (scores {difference.score_margin:.1e} apart, router "
        f"margin {difference.router_margin:.1e})"
    )


class Scorer:
    """Recomputes scores in float32 without a cache, for sequences of at most `max_len` tokens.

    Options that depend on token ids apply as in the engine. `eos_token_ids` are the engine's.
    """

    def __init__(self, target: Target, max_len: int, eos_token_ids: Collection[int] = ()) -> None:
        self._target = target
        self._max_len = max_len
        self._eos = eos_token_ids

    def explain(
        self,
        request_id: str,
        prompt: Sequence[int],
        sampling: SamplingParams,
        first: Sequence[int],
        second: Sequence[int],
        features: Features = (),
    ) -> Difference | None:
        """Return the first difference of two answers, or None. The request needs a seed.

        `features` are those of the prompt's images; no other token may be the placeholder.
        """
        index = first_difference(first, second)
        if index is None:
            return None
        pair = _token(first, index), _token(second, index)
        scores, noise, router = self._recompute(prompt, first[:index], sampling, features)
        margin = np.inf
        if pair[0] is not None and pair[1] is not None:
            noisy = scores + noise
            margin = float(abs(noisy[pair[0]] - noisy[pair[1]]))
        cause = tie_cause(scores, pair, margin, router, sampling)
        return Difference(request_id, index, pair, cause, margin, router)

    def differences(
        self,
        requests: Iterable[Request],
        first: Iterable[Sequence[int]],
        second: Iterable[Sequence[int]],
    ) -> list[Difference]:
        """Call `explain` for two lists of answers to these requests."""
        found = (
            self.explain(one.request_id, one.prompt_ids, one.sampling, ours, theirs)
            for one, ours, theirs in zip(requests, first, second, strict=True)
        )
        return [difference for difference in found if difference]

    def logits(
        self, token_ids: Int[Array, "1 seq"], features: Features
    ) -> Float[Array, "1 seq vocab"]:
        return forward(self._target, token_ids, image_features=features or None).logits

    def _recompute(
        self,
        prompt: Sequence[int],
        answer: Sequence[int],
        sampling: SamplingParams,
        features: Features,
    ) -> tuple[Floats, Floats, float]:
        """Return the next token's unfiltered scores, its noise, and the least router margin."""
        prefix = [*prompt, *answer]
        # One length needs one program; the model is causal, so padding has no influence.
        padded = jnp.asarray([prefix + [0] * (self._max_len - len(prefix))])
        logits = self.logits(padded, features)[:, len(prefix) - 1 : len(prefix)]
        position = jnp.asarray([[len(prefix)]])
        sequence = self._sequence(prompt, prefix, sampling)
        # The options of the request without its filters.
        rows = filters_off(jax.tree.map(jnp.asarray, pack_options(sequence)), jnp.ones(1, bool))
        if sequence.controlled:
            controls = jax.tree.map(jnp.asarray, pack_controls(sequence, logits.shape[-1]))
            no_drafts = jnp.zeros((1, 0), jnp.int32)
            logits = control_logits(logits, position, no_drafts, rows, controls)
        scores = np.asarray(process_logits(logits, position, rows), np.float64)[0, 0]
        ids = jnp.arange(scores.shape[0])
        noise = np.asarray(gumbel(rows.seed[:, None], position, ids), np.float64)[0, 0]
        routed = np.asarray(router_scores(self._target, padded, features))[:, :, : len(prefix)]
        moe = self._target.config.moe
        margins = router_margins(routed, moe.num_experts_per_tok) if moe else np.array(np.inf)
        return scores, noise * (sampling.temperature > 0), float(margins.min(initial=np.inf))

    def _sequence(
        self, prompt: Sequence[int], prefix: list[int], sampling: SamplingParams
    ) -> EngineSequence:
        """Return the engine's record of the request at this prefix, without stop strings."""
        assert sampling.seed is not None, "only seeded requests can be compared"
        request = Request("tie", list(prompt), replace(sampling, stop=()))
        sequence = EngineSequence.of(request, self._eos, self._max_len + 1, None)
        return replace(sequence, prefill_ids=prefix)


def first_difference(first: Sequence[int], second: Sequence[int]) -> int | None:
    """Return the first index at which two answers differ, or None; ends are compared too."""
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
    """Return the tie that explains a difference between `tokens`, or None.

    `scores` are those before filters. It is never a tie if only one of the answers has ended.
    """
    if tokens[0] is None or tokens[1] is None:
        return None
    if score_margin <= SCORE_TOLERANCE:
        return "score"
    if near_cut(scores, [tokens[0], tokens[1]], sampling):
        return "cut"
    return "router" if router_margin <= ROUTER_TOLERANCE else None


def near_cut(scores: Floats, tokens: Sequence[int], sampling: SamplingParams) -> bool:
    """Return whether a change of scores or mass within the tolerance could filter or keep a token.

    `scores` are log-probabilities up to a constant, already divided by the temperature.
    """
    if sampling.temperature == 0:
        return False
    scores = scores - scores.max()
    if sampling.min_p > 0:
        cut = np.log(sampling.min_p)
        # Any candidate at this cut matters, because it moves the mass of top-p.
        if np.any(np.abs(scores - cut) <= CUT_TOLERANCE):
            return True
        scores = np.where(scores >= cut, scores, -np.inf)
    if sampling.top_k > 0:
        if any(_rank_is_unsure(scores, token, sampling.top_k) for token in tokens):
            return True
        kth = np.sort(scores)[-min(sampling.top_k, len(scores))]
        scores = np.where(scores >= kth, scores, -np.inf)
    shares = np.exp(scores) / np.exp(scores).sum()
    if sampling.top_p < 1:
        # With typical-p after it, any candidate at this cut matters, as above.
        at_cut = tokens if sampling.typical_p == 1 else range(len(scores))
        if any(_mass_is_unsure(scores, shares, token, sampling.top_p) for token in at_cut):
            return True
        scores = np.where(_reaching(scores, shares, sampling.top_p), scores, -np.inf)
        shares = np.exp(scores) / np.exp(scores).sum()
    if sampling.typical_p == 1:
        return False
    mean = scores[shares > 0] @ shares[shares > 0]
    nearness = -np.abs(mean - scores)
    return any(_mass_is_unsure(nearness, shares, token, sampling.typical_p) for token in tokens)


def _better(scores: Floats, token: int, margin: float) -> NDArray[np.bool_]:
    """Mark the candidates that outrank `token` by more than `margin`, never `token` itself."""
    better = scores > scores[token] + margin
    better[token] = False
    return better


def _reaching(order: Floats, shares: Floats, mass: float) -> NDArray[np.bool_]:
    """Mark the smallest set of the largest in `order` that reaches `mass`, including equals."""
    falling = np.argsort(-order)
    last = np.searchsorted(np.cumsum(shares[falling]), mass)
    return order >= order[falling[min(last, len(order) - 1)]]


def _rank_is_unsure(scores: Floats, token: int, top_k: int) -> bool:
    surely = np.count_nonzero(_better(scores, token, CUT_TOLERANCE))
    perhaps = np.count_nonzero(_better(scores, token, -CUT_TOLERANCE))
    return bool(surely < top_k <= perhaps)


def _mass_is_unsure(scores: Floats, shares: Floats, token: int, top_p: float) -> bool:
    """Return whether the mass of better candidates is so near `top_p` that the token may be cut."""
    if not np.isfinite(scores[token]):
        return False
    least = shares[_better(scores, token, CUT_TOLERANCE)].sum() - CUT_TOLERANCE
    most = shares[_better(scores, token, -CUT_TOLERANCE)].sum() + CUT_TOLERANCE
    return bool(least < top_p <= most)


def _token(answer: Sequence[int], index: int) -> int | None:
    return answer[index] if index < len(answer) else None
