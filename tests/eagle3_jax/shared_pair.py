"""The pair that tests share: on one device, or on those that divide its contexts."""

from functools import cache

import context_parts
import jax
from jax.sharding import Mesh
from tiny import latent_draft, tiny_draft, tiny_target
from wide_pair import DRAFTS, wide_target

from eagle3_jax.mesh import make_mesh, shard
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target


def pair_on_one_device(kind: str) -> tuple[Target, Eagle3Draft]:
    """The same pair where no device shares it, for what engines are compared with."""
    if context_parts.PARTS == 1:
        target = tiny_target()
        return target, {"grouped": tiny_draft, "latent": latent_draft}[kind](target)
    target = wide_target()
    return target, DRAFTS[kind](target)


def shared_target() -> Target:
    """The tiny one; one with as many heads as devices need, where there are several."""
    if context_parts.PARTS == 1:
        return tiny_target()
    target = wide_target()
    shard(target, _mesh())
    return target


def shared_draft(kind: str, target: Target) -> Eagle3Draft:
    """The draft of this target, with `grouped` or `latent` attention."""
    if context_parts.PARTS == 1:
        return {"grouped": tiny_draft, "latent": latent_draft}[kind](target)
    draft = DRAFTS[kind](target)
    shard(draft, _mesh())
    return draft


@cache
def _mesh() -> Mesh:
    count = context_parts.PARTS
    return make_mesh(count, devices=jax.devices()[:count])
