"""The probability of accepting a draft from q where the target's distribution is p.

Coupled: arXiv 2408.07978. All in float64, from the probabilities alone: nothing is drawn.
"""

from dataclasses import dataclass, fields

import numpy as np


@dataclass(frozen=True)
class Acceptance:
    """Probabilities that a draft is accepted, and the entropy of p in nats.

    coupled: both choices are made with the same noise. bound: what it can't be below,
    (1-TV)/(1+TV). greedy_draft: the draft is q's best token, as other engines draft. optimum: 1-TV,
    rejection sampling's.
    """

    coupled: float
    bound: float
    greedy_draft: float
    optimum: float
    entropy: float

    @classmethod
    def of(cls, p: np.ndarray, q: np.ndarray) -> "Acceptance":
        """For two distributions over the same tokens, which are normalised here."""
        p, q = p / p.sum(dtype=np.float64), q / q.sum(dtype=np.float64)
        distance = float(np.abs(p - q).sum() / 2)
        likely = p[p > 0]
        return cls(
            coupled=coupled_acceptance(p, q),
            bound=(1 - distance) / (1 + distance),
            greedy_draft=float(p[np.argmax(q)]),
            optimum=1 - distance,
            entropy=float(-(likely * np.log(likely)).sum()),
        )

    @classmethod
    def mean(cls, positions: "list[Acceptance]") -> "Acceptance":
        """Over positions."""
        return cls(*(float(np.mean([getattr(a, f.name) for a in positions])) for f in fields(cls)))


def coupled_acceptance(p: np.ndarray, q: np.ndarray) -> float:
    """Pr[argmax(log p + g) = argmax(log q + g)] for Gumbel noise g.

    That is the sum over i of 1 / sum_j max(p_j / p_i, q_j / q_i). Sorted by p/q, the larger ratio
    is q's before i and p's from i on, so that sums accumulate.
    """
    some = (p > 0) | (q > 0)
    p, q = p[some], q[some]
    with np.errstate(divide="ignore"):
        order = np.argsort(p / q, kind="stable")
    p, q = p[order], q[order]
    p_from, q_before = np.cumsum(p[::-1])[::-1], np.cumsum(q) - q
    both = (p > 0) & (q > 0)
    return float((1 / (p_from[both] / p[both] + q_before[both] / q[both])).sum())
