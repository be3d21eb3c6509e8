"""Rounds with grammars, as two programs, because their masks depend on their drafts."""

from collections.abc import Callable
from collections.abc import Sequence as Rows

from eagle3_jax.engine.grammars.masking import Masking, MaskRequest, Masks
from eagle3_jax.engine.programs.choice import largest_replica_batch, places
from eagle3_jax.engine.programs.runner import ProgramOutput, Runner
from eagle3_jax.engine.sequence import Sequence


def with_masks(
    members: list[Sequence], masking: Masking, constrained: Callable[[Sequence], bool]
) -> tuple[list[Sequence], Masks]:
    """Return the sequences whose masks, if they need any, are ready, and these masks."""
    waiting = {s: s.matcher for s in members if s.matcher is not None and constrained(s)}
    masks = masking.next_masks(list(waiting.values())) if waiting else {}
    return [s for s in members if s not in waiting or s.matcher in masks], masks


def batches_of(members: list[Sequence], *, exact: bool) -> list[list[Sequence]]:
    """Group sequences into rounds.

    In exact mode constrained sequences run apart: their rounds are other programs, and a sequence's
    bits must not depend on a neighbour's options.
    """
    if not exact:
        return [members] if members else []
    free = [s for s in members if s.matcher is None]
    constrained = [s for s in members if s.matcher is not None]
    return [batch for batch in (free, constrained) if batch]


def run_split_round(
    members: Rows[Sequence], first: Masks, runner: Runner, masking: Masking
) -> ProgramOutput:
    """Mask the first drafts, propose, mask the nodes after the drafts, and verify.

    If a grammar allows only one token, the host drafts it.
    """
    config = runner.config
    bucket = config.split_bucket_for(largest_replica_batch(members))
    masks = runner.open_nodes(bucket * config.data_parallel_size)
    rows = zip(places(members, bucket), members, strict=True)
    constrained = [(row, s.matcher) for row, s in rows if s.matcher and s.matcher in first]
    for row, matcher in constrained:
        masks[row, 0] = first[matcher]
    proposal = runner.propose(members, masks[:, :1])
    tree = runner.read_drafts(proposal)
    drafts, parents = tree.tokens[:, 1:], tree.parents[:, 1:]
    asked = [MaskRequest(m, drafts[row].tolist(), parents[row].tolist()) for row, m in constrained]
    behind = masking.fill_after_drafts(asked, [masks[row] for row, _ in constrained])
    for (row, _), ids in zip(constrained, behind, strict=True):
        drafts[row] = ids
    return runner.verify(members, proposal, tree, masks)
