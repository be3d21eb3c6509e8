"""The embedded target's drafts: as trained, quantised by us, and with latent attention."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from convert.quantize.run import prepare, write
from convert.quantize.schemes import scheme_of
from serve.demo import demo_draft_dir, demo_latent_draft_dir
from serve.load_flags import DEFAULTS, LoadOptions
from serve.notices import Say

QUANTISED = {"FP8": "ptpc_fp8", "INT4": "int4"}
"""Name -> scheme of eagle3-quantize."""
AS_WRITTEN = LoadOptions(int4_order="linear")


@dataclass(frozen=True)
class DraftFiles:
    """A draft to be measured, how tables call it and how it is loaded."""

    name: str
    directory: Path
    load: LoadOptions = DEFAULTS


def embedded_drafts(into: Path, say: Say) -> Iterator[DraftFiles]:
    """Quantises into new directories in `into`; a draft that is not embedded is said, and left out.

    Raises FileNotFoundError without the embedded pair.
    """
    trained = demo_draft_dir()
    yield DraftFiles("BF16", trained)
    for name, scheme in QUANTISED.items():
        write(prepare(trained, into / scheme, scheme_of(scheme)))
        yield DraftFiles(name, into / scheme, AS_WRITTEN)
    try:
        yield DraftFiles("MLA", demo_latent_draft_dir())
    except FileNotFoundError as error:
        say(f"no MLA draft: {error}")


def named(directories: Iterable[str]) -> Iterator[DraftFiles]:
    """Other drafts, each called as its directory."""
    for directory in directories:
        yield DraftFiles(Path(directory).name, Path(directory))
