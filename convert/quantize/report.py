"""Format the command's output: the plan, and the comparison as a table or as JSON."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from convert.published.exclude import REGEX

if TYPE_CHECKING:
    from convert.quantize.accept_change import AcceptChange
    from convert.quantize.compare import Comparison
    from convert.quantize.run import Job


def plan_text(job: "Job") -> str:
    """Return the plan in a few lines: weights quantised and kept, and names in config.json."""
    plan, selection = job.plan, job.plan.selection
    linear = len(selection.quantized) + len(selection.kept)
    style = "patterns" if any(name.startswith(REGEX) for name in job.excludes) else "names"
    lines = [
        f"{plan.source.directory} -> {job.destination}",
        f"scheme    {plan.scheme.name}: {len(selection.quantized)} of {linear} linear weights, "
        f"{_mib(plan.bytes_read)} -> {_mib(plan.bytes_written)} in {len(plan.files)} files",
        f"kept      {len(selection.kept)} linear weights, by {_some(selection.patterns)}",
        f"excludes  as {style} in config.json: {_some(job.excludes)}",
        f"copied    {_some([path.name for path in job.copied])}",
    ]
    return "\n".join(lines)


def _some(names: Sequence[str], limit: int = 12) -> str:
    more = [f"and {len(names) - limit} more"] if len(names) > limit else []
    return " ".join([*names[:limit], *more]) or "-"


def _mib(count: int) -> str:
    return f"{count / (1 << 20):,.2f} MiB"


def comparison_text(comparison: "Comparison", limit: int) -> str:
    """Return a table, worst weight first, then the totals."""
    width = max((len(error.name) for error in comparison.tensors[:limit]), default=0)
    lines = [f"{'relative':>10}  {'largest':>10}  {'tensor':<{width}}  A / B"]
    lines += [
        f"{error.relative:10.3e}  {error.largest:10.3e}  {error.name:<{width}}  "
        f"{error.form} / {error.reference_form}"
        for error in comparison.tensors[:limit]
    ]
    if len(comparison.tensors) > limit:
        lines.append(f"... {len(comparison.tensors) - limit} more; --limit or --json shows them")
    equal = sum(error.largest == 0 for error in comparison.tensors)
    lines.append(
        f"total {comparison.relative:.3e} over {len(comparison.tensors)} tensors, {equal} equal"
    )
    for label, names in (("A", comparison.only_in_first), ("B", comparison.only_in_second)):
        if names:
            lines.append(f"only in {label}: {' '.join(names[:limit])}")
    return "\n".join(lines)


def accept_text(change: "AcceptChange") -> str:
    """Return both accept lengths and their difference."""
    return (
        f"accept length A {change.first:.3f}, B {change.second:.3f}, change "
        f"{change.first - change.second:+.3f} ({change.prompts} prompts, "
        f"{change.first_rounds} and {change.second_rounds} rounds, "
        f"k = {change.num_speculative_tokens})"
    )


def comparison_json(comparison: "Comparison", change: "AcceptChange | None") -> str:
    """Return one line of JSON; null stands for an infinite error."""
    content: dict[str, Any] = _without_infinity(asdict(comparison))
    if change is not None:
        content["accept_length"] = asdict(change)
    return json.dumps(content)


def _without_infinity(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_infinity(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_without_infinity(entry) for entry in value]
    return None if isinstance(value, float) and math.isinf(value) else value
