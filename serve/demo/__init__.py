"""The embedded pair of models, and what they were made with."""

from importlib.resources import files
from pathlib import Path

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


def directories(options: PairOptions) -> tuple[Path, Path | None]:
    """The target's directory, and the draft's if there are drafts."""
    if options.demo:
        target, draft = demo_target_dir(), demo_draft_dir()
    else:
        named = options.speculation.draft
        target, draft = Path(options.model or ""), Path(named) if named else None
    return target, draft if options.engine.num_speculative_tokens else None


def _pair_member(name: str) -> Path:
    directory = Path(str(files(__name__))) / "pair" / name
    if not (directory / "config.json").is_file():
        raise FileNotFoundError(
            f"{directory} holds no model: reinstall the package, or make the pair with eagle3-train"
        )
    return directory
