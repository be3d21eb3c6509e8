"""Size of draft trees, in SGLang's terms."""

from typing import NamedTuple

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
