"""Does this draft belong to this target, and which of the target's modules does it use?"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from convert.eagle3 import canonical_draft_name
from convert.safetensors_files import Checkpoint
from eagle3_jax.config import DraftConfig, TargetConfig

HeadChoice = Literal["auto", "own", "target"]


@dataclass(frozen=True)
class Pair:
    """A draft's files and configuration beside its target's configuration."""

    checkpoint: Checkpoint
    draft: DraftConfig
    target: TargetConfig

    def check_dimensions(self) -> None:
        """Raises ValueError for a draft of another target, before its tensors are compared."""
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
        if (fc := self._shapes.get("fc.weight")) and fc[-1] != features:
            self._fail(
                f"has an fc that reads {fc[-1]} features, {draft.num_aux} aux layers of this "
                f"target's hidden size {target.hidden_size} give {features}"
            )
        keys = draft.num_key_value_heads * draft.head_dim
        k_proj = self._shapes.get("midlayer.self_attn.k_proj.weight")
        if k_proj and k_proj[0] != keys:
            self._fail(
                f"says num_key_value_heads {draft.num_key_value_heads} in config.json, but its "
                f"k_proj {k_proj} holds {k_proj[0] / draft.head_dim:g} heads of {draft.head_dim}"
            )

    def shared_modules(self, lm_head: HeadChoice) -> set[str]:
        """The target's modules that the draft uses; ValueError when they cannot serve it."""
        if lm_head not in ("auto", "own", "target"):
            raise ValueError(f"lm_head must be auto, own or target, got {lm_head!r}")
        has_head = "lm_head.weight" in self._shapes
        if lm_head == "own" and not has_head:
            self._fail("has no lm_head of its own; use lm_head='auto'")
        shared = set() if has_head and lm_head != "target" else {"lm_head"}
        if shared and self.draft.draft_vocab_size != self.target.vocab_size:
            self._fail(
                f"needs an lm_head for its {self.draft.draft_vocab_size} draft ids; the target's "
                f"covers {self.target.vocab_size}"
            )
        if "embed_tokens.weight" not in self._shapes:
            shared.add("embed_tokens")
        if shared and self.draft.hidden_size != self.target.hidden_size:
            self._fail(
                f"cannot use the target's {' and '.join(sorted(shared))}: its hidden size is "
                f"{self.draft.hidden_size}, the target's {self.target.hidden_size}"
            )
        return shared

    def check_target_ids(self) -> None:
        """Raises ValueError when d2t leads out of the vocabulary, or isn't zero without need."""
        name = self._names.get("d2t")
        if name is None:
            return
        offsets = self.checkpoint.read(name)
        if self.draft.draft_vocab_size == self.draft.vocab_size:
            if offsets.any():
                self._fail("has a d2t that moves ids although its vocabulary is the target's")
            return
        ids = np.arange(len(offsets)) + offsets
        outside = np.flatnonzero((ids < 0) | (ids >= self.draft.vocab_size))
        if outside.size:
            self._fail(
                f"has a d2t that maps draft id {outside[0]} to {ids[outside[0]]}, outside the "
                f"vocabulary of {self.draft.vocab_size} ({outside.size} such entries)"
            )

    @cached_property
    def _names(self) -> dict[str, str]:
        return {canonical_draft_name(name): name for name in self.checkpoint.tensors}

    @property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: self.checkpoint.tensors[real].shape for name, real in self._names.items()}

    def _fail(self, message: str) -> None:
        raise ValueError(f"draft {self.checkpoint.directory} {message}")
