"""Read the speculation counters of /metrics, under vLLM's names, before and after a run."""

import re
from collections import Counter
from collections.abc import Mapping

from eagle3_tools.bench.common.accept_length import AcceptCounts
from eagle3_tools.bench.load.http_client import Address, request

PREFIX = "vllm:spec_decode_num_"
SAMPLE = re.compile(rf"^{PREFIX}(\w+?)_total(?:\{{([^}}]*)\}})? (\S+)$", re.MULTILINE)
POSITION = re.compile(r'position="(\d+)"')

Counts = Mapping[tuple[str, int | None], float]
"""(name without prefix and `_total`, position) -> value, summed over engines."""


def read_counts(text: str) -> Counts:
    """Parse the counters in a /metrics text; the result is empty without a draft."""
    counts: Counter[tuple[str, int | None]] = Counter()
    for name, labels, value in SAMPLE.findall(text):
        position = POSITION.search(labels)
        # Counters are integers in any notation, such as 1e+06.
        counts[name, int(position[1]) if position else None] += round(float(value))
    return counts


def between(before: Counts, after: Counts) -> AcceptCounts | None:
    """Return the counts between two readings, or None without a draft."""

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
    """Fetch the current counters; empty if the server has no /metrics."""
    reply = await request(address, "GET", "/metrics")
    return read_counts(reply.text) if reply.status == 200 else {}
