"""Peers' kernels: facts of their compiled code, and the times that their authors published.

`records/published.json` has numbers only, a line for each launch or pair of launches that were
timed together. A family is the kernels of one kind; docs/kernel_model.md says what compiled them.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import exp, log
from statistics import median, pstdev

from eagle3_tools.kernel_model.gpus import MI355X, ModelGpu
from eagle3_tools.kernel_model.record import FOLDER, CaseFacts, read_case

_RECORD = FOLDER / "published.json"
_OURS = (
    (r"grouped_mlp .* int4_group ", "INT4 experts"),
    (r"grouped_mlp .* mxfp4_mxfp4 ", "MXFP4 experts"),
    (r"\w+_matmul .* (ptpc|fp8_block) |logits_argmax .* ptpc ", "FP8 products"),
    (r"(joint_matmul|gated_matmul|logits_argmax) .* bf16 ", "bf16 products, Triton"),
    (r"(mla_decode|attend_share) ", "MLA decode"),
)
"""Our cases (of kernel_model/named.py) and the family that they are compared with."""


@dataclass(frozen=True)
class Published:
    """A launch, or several that were timed together. us: published time; source: its table."""

    case: CaseFacts
    us: float
    source: str

    @property
    def family(self) -> str:
        return self.case.name.partition(": ")[0]

    def ratio(self, gpu: ModelGpu = MI355X) -> float:
        """Return the predicted time, with the start and end of each launch, over the published."""
        seconds = self.case.seconds(gpu) + gpu.graph_gap * len(self.case.kernels)
        return 1e6 * seconds / self.us


@dataclass(frozen=True)
class Family:
    """Predicted over published times of a family. spread: factor of one standard deviation."""

    count: int
    median: float
    spread: float
    sources: tuple[str, ...]


@cache
def published() -> tuple[Published, ...]:
    """Return the recorded kernels of peers."""
    lines = json.loads(_RECORD.read_text(encoding="utf-8"))["cases"]
    return tuple(
        Published(read_case(name, fields), fields["us"], fields["source"])
        for name, fields in lines.items()
    )


def families() -> Mapping[str, Family]:
    """Return family -> agreement of the model with its published times."""
    found: dict[str, list[Published]] = {}
    for one in published():
        found.setdefault(one.family, []).append(one)
    return {name: _family(members) for name, members in found.items()}


def _family(members: list[Published]) -> Family:
    ratios = [one.ratio() for one in members]
    sources = tuple(dict.fromkeys(one.source for one in members))
    return Family(len(ratios), median(ratios), exp(pstdev(map(log, ratios))), sources)


def family_of(case: str) -> str | None:
    """Return the family of one of our cases, None if no peer's kernel was measured."""
    return next((family for pattern, family in _OURS if re.match(pattern, case + " ")), None)
