"""The counters of speculation at /metrics, in vLLM's names: before a run and after it."""

import re
from collections import Counter
from collections.abc import Mapping

from eagle3_tools.bench.common.accept_length import AcceptCounts
from eagle3_tools.bench.load.http_client import Address, request

PREFIX = "vllm:spec_decode_num_"
SAMPLE = re.compile(rf"^{PREFIX}(\w+?)_total(?:\{{([^}}]*)\}})? (\S+)$", re.MULTILINE)
POSITION = re.compile(r'position="(\d+)"')

Counts = Mapping[tuple[str, int | None], float]
"""By name, without prefix and `_total`, and position; summed over engines."""


def read_counts(text: str) -> Counts:
    """The counters in what /metrics answered; empty where nothing is drafted."""
    counts: Counter[tuple[str, int | None]] = Counter()
    for name, labels, value in SAMPLE.findall(text):
        position = POSITION.search(labels)
        # Counters are whole, whatever form they are written in: 1e+06 is one.
        counts[name, int(position[1]) if position else None] += round(float(value))
    return counts


def between(before: Counts, after: Counts) -> AcceptCounts | None:
    """What was counted in between; None without a draft."""

    def grown(name: str, position: int | None = None) -> int:
        key = (name, position)
        return int(after.get(key, 0) - before.get(key, 0))

    if not (drafts := grown("drafts")):
        return None
    name = "accepted_tokens_per_pos"
    positions = sorted(place for found, place in after if found == name and place is not None)
    return AcceptCounts(
        drafts,
        grown("draft_tokens"),
        grown("accepted_tokens"),
        tuple(grown(name, position) for position in positions),
    )


async def fetch_counts(address: Address) -> Counts:
    """The counters now; empty where the server has no /metrics."""
    reply = await request(address, "GET", "/metrics")
    return read_counts(reply.text) if reply.status == 200 else {}
