"""The embedded pairs of models, which `eagle3_tools.make_demo` made."""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from rich.console import Console

from convert.hub.checkpoint import check_published_roles, find_checkpoint
from convert.hub.files import TOKENIZER_ALONE
from serve.options.pair import DEMO_VISION, PairOptions


def demo_target_dir() -> Path:
    """Return the directory of the embedded target, in published form."""
    return _pair_member("target")


def demo_draft_dir() -> Path:
    """Return the directory of the embedded target's EAGLE-3 draft, in published form."""
    return _pair_member("draft")


def demo_vision_target_dir() -> Path:
    """Return the directory of the embedded target that sees pictures of shapes."""
    return _pair_member("vision/target")


def demo_vision_draft_dir() -> Path:
    """Return the directory of the vision target's EAGLE-3 draft, in published form."""
    return _pair_member("vision/draft")


@dataclass(frozen=True)
class PairDirectories:
    """Directories of a pair; `tokenizer` is the target's unless another one was requested."""

    target: Path
    draft: Path | None
    tokenizer: Path


def find_pair(options: PairOptions, console: Console | None = None) -> PairDirectories:
    """Find or download a pair's directories; raises as `find_checkpoint` and `check_roles`."""
    sources, drafts = options.sources, options.engine.num_speculative_tokens > 0
    named = sources.draft if drafts else None
    if sources.target is not None:
        check_published_roles(sources.target, named, console)
    tokenizer = sources.tokenizer and find_checkpoint(sources.tokenizer, TOKENIZER_ALONE, console)
    if sources.target is None:
        target, draft = demo_dirs(options.demo)
        draft = draft if drafts else None
    else:
        target = find_checkpoint(sources.target, console=console)
        draft = named and find_checkpoint(named, console=console)
    return PairDirectories(target, draft, tokenizer or target)


def demo_dirs(demo: str) -> tuple[Path, Path]:
    """Return target and draft of `--demo-vision`, or else of the text pair."""
    if demo == DEMO_VISION:
        return demo_vision_target_dir(), demo_vision_draft_dir()
    return demo_target_dir(), demo_draft_dir()


def _pair_member(name: str) -> Path:
    directory = Path(str(files(__name__))) / "pair" / name
    if not (directory / "config.json").is_file():
        raise FileNotFoundError(
            f"{directory} holds no model: reinstall the package, or make the pair with "
            "eagle3_tools.make_demo"
        )
    return directory
