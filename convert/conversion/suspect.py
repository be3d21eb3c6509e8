"""Detect non-finite weights and missing or damaged tokenizers."""

from pathlib import Path

from convert.conversion.conversion import Conversion
from convert.store.manifest import Manifest
from convert.text.tokenizer import load_tokenizer
from eagle3_jax.models.eagle3 import Eagle3Draft

NAMED = 3
"""Maximum number of tensors that an error names."""


def check_finite(manifest: Manifest, allowed: bool, partial: Path) -> list[str]:
    """Return warnings about NaN or infinite weights; ValueError unless they are allowed."""
    names = [name for parameter in manifest.parameters for name in parameter.nonfinite]
    if not names:
        return []
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    found = f"{len(names)} tensors hold NaN or infinities: {', '.join(names[:NAMED])}{more}"
    if allowed:
        return [f"warning: {found}"]
    raise ValueError(
        f"{found}; repeat the command with --allow-nonfinite to keep them, or delete {partial}"
    )


def check_tokenizer(conversion: Conversion) -> list[str]:
    """Return notes on a target's tokenizer; ValueError if it is empty or damaged."""
    directory = conversion.planned.published.directory
    if isinstance(conversion.model, Eagle3Draft):
        return []
    try:
        load_tokenizer(directory)
    except FileNotFoundError:
        return [f"note: {directory} has no tokenizer; eagle3-serve and eagle3-generate need one"]
    except ValueError as error:
        raise ValueError(f"{error}; replace it, or remove it to convert without one") from error
    return []
