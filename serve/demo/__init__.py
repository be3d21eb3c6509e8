"""The embedded pair of models, and what they were made with."""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from rich.console import Console

from convert.hub.checkpoint import find_checkpoint
from convert.hub.files import TOKENIZER_ALONE
from serve.options.pair import PairOptions


def demo_target_dir() -> Path:
    """Directory of the embedded target, in published form."""
    return _pair_member("target")


def demo_draft_dir() -> Path:
    """Directory of the embedded target's EAGLE-3 draft, in published form."""
    return _pair_member("draft")


def demo_latent_draft_dir() -> Path:
    """Directory of the embedded target's draft with latent attention (MLA), in published form."""
    return _pair_member("draft_mla")


@dataclass(frozen=True)
class PairDirectories:
    """Where the files of a pair lie. draft: None without drafts; tokenizer: the target's unless
    another one was asked for."""

    target: Path
    draft: Path | None
    tokenizer: Path


def find_pair(options: PairOptions, console: Console | None = None) -> PairDirectories:
    """The directories of a pair; what is named by a hub id is downloaded, and the console shows how
    far that is. Raises as `find_checkpoint`."""
    sources = options.sources
    tokenizer = sources.tokenizer and find_checkpoint(sources.tokenizer, TOKENIZER_ALONE, console)
    if sources.target is None:
        target, draft = demo_target_dir(), demo_draft_dir()
    else:
        target = find_checkpoint(sources.target, console=console)
        draft = sources.draft
    if not options.engine.num_speculative_tokens:
        draft = None
    return PairDirectories(
        target, draft and find_checkpoint(draft, console=console), tokenizer or target
    )


def _pair_member(name: str) -> Path:
    directory = Path(str(files(__name__))) / "pair" / name
    if not (directory / "config.json").is_file():
        raise FileNotFoundError(
            f"{directory} holds no model: reinstall the package, or make the pair with eagle3-train"
        )
    return directory
