"""What servers are asked for: lengths of prompts and answers, and where the words come from."""

from dataclasses import dataclass
from typing import Literal

from eagle3_tools.bench.load.lengths import Sampling

Endpoint = Literal["completions", "chat"]


@dataclass(frozen=True)
class Workload:
    """What is asked for: mean lengths in tokens, how they vary, and where the words come from."""

    isl: int
    osl: int
    sampling: Sampling = "inferencex"
    range_ratio: float = 0.8
    chat_template: bool = True
    sharegpt: str | None = None
