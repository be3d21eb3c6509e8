"""The same weights in transformers' DeepseekV3, generating greedily with torch.

There are two peers: `generate` with its defaults, and the fastest that transformers documents for a
CPU: a static cache, the forward pass through torch.compile, the experts as batched products.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from convert.equivalence.compare import require_transformers
from convert.files.safetensors_files import SINGLE_FILE
from convert.fill import shapes_of
from convert.models.kimi_k25 import kimi_rules, kimi_to_hf
from convert.save import host_reader, saved_tensors, write_tensors
from eagle3_jax.models.kimi import KimiTarget


class TransformersPeer:
    """A peer with the target's weights; `compiled` is the faster, which needs a C++ compiler."""

    def __init__(
        self,
        target: KimiTarget,
        *,
        compiled: bool = False,
        dtype: str = "float32",
        threads: int = 1,
    ) -> None:
        require_transformers()
        import torch
        from transformers import DeepseekV3ForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        torch.set_num_threads(threads)
        self._torch, self._options = torch, {}
        with tempfile.TemporaryDirectory() as directory:
            _write_deepseek(target, Path(directory))
            loaded = DeepseekV3ForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype))
            self._model: Any = loaded
        if compiled:
            self._model.set_experts_implementation("batched_mm")
            self._model.forward = torch.compile(self._model.forward, dynamic=False)
            self._options = {"cache_implementation": "static"}

    def generate(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[list[int]]:
        """Return exactly `new_tokens` greedy tokens for each prompt; prompts have one length."""
        inputs = self._torch.tensor(prompts)
        with self._torch.inference_mode():
            output = self._model.generate(
                inputs,
                attention_mask=self._torch.ones_like(inputs),
                do_sample=False,
                max_new_tokens=new_tokens,
                eos_token_id=None,
                **self._options,
            )
        return output[:, inputs.shape[1] :].tolist()


def need_compiler(which: Callable[[str], str | None] = shutil.which) -> None:
    """Raise OSError if there is no C++ compiler for torch.compile."""
    if which("g++") is None:
        raise OSError(
            "the compiled peer runs through torch.compile, which needs a C++ compiler: install "
            "g++, or leave that peer out with --peers default"
        )


def _write_deepseek(target: KimiTarget, directory: Path) -> None:
    """Write a minimal DeepSeek-V3 checkpoint in float32."""
    rules, single = kimi_rules(target.config), np.dtype(np.float32)
    tensors = saved_tensors(rules, shapes_of(target), host_reader(target), single)
    write_tensors(directory / SINGLE_FILE, tensors)
    config = kimi_to_hf(target.config, "float32")["text_config"]
    config |= {"model_type": "deepseek_v3", "eos_token_id": None, "pad_token_id": 0}
    (directory / "config.json").write_text(json.dumps(config))
