"""Parallelism of a pair: over how many devices it lies; `eagle3_jax.mesh` has what is split."""

import math
from dataclasses import dataclass, replace

MOST_DEVICES = 64


@dataclass(frozen=True)
class Parallelism:
    """devices: as many as tensor parallelism has; draft_devices: over how many of them the draft
    is split, all or none. expert_parallel: devices hold whole experts, not a part of each.
    context_parts: neighbours that divide the latents of a context, D of decode context
    parallelism; it divides the devices."""

    devices: int = 1
    draft_devices: int = 1
    expert_parallel: bool = False
    context_parts: int = 1

    def over(self, devices: int) -> "Parallelism":
        """The same over another number of devices; a draft that is whole stays whole, and contexts
        are divided as far as these devices allow."""
        whole = self.draft_devices == 1 < self.devices
        return replace(
            self,
            devices=devices,
            draft_devices=1 if whole else devices,
            context_parts=math.gcd(self.context_parts, devices),
        )
