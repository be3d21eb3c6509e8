"""Every way a pair lies on devices."""

from itertools import product
from typing import NamedTuple

import jax
from wide_pair import DRAFTS, wide_target

from eagle3_jax.mesh import make_mesh, shard
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target


class Setup(NamedTuple):
    """draft_split: over the same devices as the target, else whole on each of them."""

    devices: int
    by_expert: bool
    draft: str
    format: str
    draft_split: bool

    def __str__(self) -> str:
        experts = "experts" if self.by_expert else "columns"
        where = "split" if self.draft_split else "whole"
        return f"{self.devices} devices by {experts}, {self.draft} draft {where}, {self.format}"


CHOICES = ((1, 2, 4, 8), (False, True), ("grouped", "latent"), ("float32", "int4", "mxfp4"))
ALL = [Setup(*chosen) for chosen in product(*CHOICES, (True, False))]


def pair_on_devices(setup: Setup) -> tuple[Target, Eagle3Draft]:
    """The pair, placed; a draft that is whole keeps the target's split embedding and head."""
    target = wide_target(setup.format)
    draft = DRAFTS[setup.draft](target)
    devices = jax.devices()[: setup.devices]
    mesh = make_mesh(setup.devices, enable_expert_parallel=setup.by_expert, devices=devices)
    shard(target, mesh)
    if setup.draft_split:
        shard(draft, mesh)
    return target, draft


def pair_on_replicas(
    replicas: int, devices: int, draft: str = "latent", format: str = "float32"
) -> tuple[Target, Eagle3Draft]:
    """The pair on replicas of so many devices, which share whole experts."""
    target = wide_target(format)
    proposing = DRAFTS[draft](target)
    taken = jax.devices()[: replicas * devices]
    on_all = {"enable_expert_parallel": True, "data_parallel_size": replicas, "devices": taken}
    mesh = make_mesh(devices, **on_all)
    shard(target, mesh)
    shard(proposing, mesh)
    return target, proposing
