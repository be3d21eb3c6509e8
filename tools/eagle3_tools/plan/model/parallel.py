"""Parallelism of a pair over devices; `eagle3_jax.mesh` defines which arrays are split."""

import math
from dataclasses import dataclass, replace

MOST_DEVICES = 64


@dataclass(frozen=True)
class Parallelism:
    """devices: tensor parallel size. draft_devices: devices that the draft is split over, all or
    one. expert_parallel: devices hold whole experts, not a part of each. context_parts: decode
    context parallel size, the devices that split the latents of a context; divides devices."""

    devices: int = 1
    draft_devices: int = 1
    expert_parallel: bool = False
    context_parts: int = 1

    def over(self, devices: int) -> "Parallelism":
        """Return the parallelism on another number of devices. A whole draft stays whole, and
        contexts are split as far as these devices allow."""
        whole = self.draft_devices == 1 < self.devices
        return replace(
            self,
            devices=devices,
            draft_devices=1 if whole else devices,
            context_parts=math.gcd(self.context_parts, devices),
        )
