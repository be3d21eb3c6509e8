"""A benchmark's workload: lengths of prompts and answers, and the source of the text."""

from dataclasses import dataclass
from typing import Literal

from eagle3_tools.bench.load.lengths import Sampling

Endpoint = Literal["completions", "chat"]


@dataclass(frozen=True)
class Workload:
    """Mean lengths in tokens, their distribution, and the source of the text."""

    isl: int
    osl: int
    sampling: Sampling = "inferencex"
    range_ratio: float = 0.8
    chat_template: bool = True
    sharegpt: str | None = None
