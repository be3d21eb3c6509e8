"""Check that a draft belongs to a target, and find the target's modules that it uses."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from eagle3_jax.config import DraftConfig, TargetConfig

HeadChoice = Literal["auto", "own", "target"]


@dataclass(frozen=True)
class DraftForTarget:
    """A draft's directory and configuration, with its target's configuration.

    `shapes` maps the canonical name of each of the draft's weights to its shape, [out, in].
    """

    directory: Path
    shapes: Mapping[str, tuple[int, ...]]
    draft: DraftConfig
    target: TargetConfig

    def check_dimensions(self) -> None:
        """Raise ValueError if the draft's dimensions belong to another target."""
        draft, target = self.draft, self.target
        if draft.target_hidden_size != target.hidden_size:
            self._fail(
                f"drafts for a target of hidden size {draft.target_hidden_size}, "
                f"this target has {target.hidden_size}"
            )
        if draft.vocab_size != target.vocab_size:
            self._fail(
                f"drafts for a vocabulary of {draft.vocab_size}, this target has "
                f"{target.vocab_size}"
            )
        features = draft.num_aux * target.hidden_size
        if (fc := self.shapes.get("fc.weight")) and fc[-1] != features:
            self._fail(
                f"has an fc that reads {fc[-1]} features, {draft.num_aux} aux layers of this "
                f"target's hidden size {target.hidden_size} give {features}"
            )
        keys = draft.num_key_value_heads * draft.head_dim
        k_proj = self.shapes.get("midlayer.self_attn.k_proj.weight")
        if k_proj and k_proj[0] != keys:
            self._fail(
                f"says num_key_value_heads {draft.num_key_value_heads} in config.json, but its "
                f"k_proj {k_proj} holds {k_proj[0] / draft.head_dim:g} heads of {draft.head_dim}"
            )

    def shared_modules(self, lm_head: HeadChoice) -> set[str]:
        """Return the names of the target's modules that the draft uses; ValueError for a misfit."""
        if lm_head not in ("auto", "own", "target"):
            raise ValueError(f"lm_head must be auto, own or target, got {lm_head!r}")
        has_head = "lm_head.weight" in self.shapes
        if lm_head == "own" and not has_head:
            self._fail("has no lm_head of its own; use lm_head='auto'")
        shared = set() if has_head and lm_head != "target" else {"lm_head"}
        if shared and self.draft.draft_vocab_size != self.target.vocab_size:
            self._fail(
                f"needs an lm_head for its {self.draft.draft_vocab_size} draft ids; the target's "
                f"covers {self.target.vocab_size}"
            )
        if "embed_tokens.weight" not in self.shapes:
            shared.add("embed_tokens")
        if shared and self.draft.hidden_size != self.target.hidden_size:
            self._fail(
                f"cannot use the target's {' and '.join(sorted(shared))}: its hidden size is "
                f"{self.draft.hidden_size}, the target's {self.target.hidden_size}"
            )
        return shared

    def _fail(self, message: str) -> None:
        raise ValueError(f"draft {self.directory} {message}")


def check_target_ids(directory: Path, draft: DraftConfig, offsets: np.ndarray) -> None:
    """Raise ValueError if d2t maps outside the vocabulary, or is nonzero with a full vocabulary."""
    if draft.draft_vocab_size == draft.vocab_size:
        if offsets.any():
            raise ValueError(
                f"draft {directory} has a d2t that moves ids although its vocabulary is the "
                "target's"
            )
        return
    ids = np.arange(len(offsets)) + offsets
    outside = np.flatnonzero((ids < 0) | (ids >= draft.vocab_size))
    if outside.size:
        raise ValueError(
            f"draft {directory} has a d2t that maps draft id {outside[0]} to {ids[outside[0]]}, "
            f"outside the vocabulary of {draft.vocab_size} ({outside.size} such entries)"
        )
