"""transformers' DeepseekV3 with the weights of a published Kimi checkpoint, layer by layer."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import nn
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek

from convert.quantize.decode import dequantize

PREFIXES = ("language_model.model.", "language_model.", "model.", "")
PARTS = ("weight", "weight_packed", "weight_scale", "weight_scale_2", "weight_scale_inv")
PARTS += ("weight_zero_point",)


class PublishedTensors:
    """Tensors of a directory by the text model's names, read by the safetensors library."""

    def __init__(self, directory: Path, stack: ExitStack):
        files = sorted(directory.glob("*.safetensors"))
        opened = [stack.enter_context(safe_open(file, framework="pt")) for file in files]
        self._files = {name: file for file in opened for name in file.keys()}

    def weight(self, module: str) -> torch.Tensor:
        """`module.weight` in float32, dequantised where the file has it quantised."""
        named = {part: self._find(f"{module}.{part}") for part in PARTS}
        parts = {part: self._array(name) for part, name in named.items() if name is not None}
        if not parts:
            raise ValueError(f"the checkpoint has no {module}.weight")
        return torch.from_numpy(dequantize(parts))

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor that is never quantised, in float32."""
        found = self._find(name)
        if found is None:
            raise ValueError(f"the checkpoint has no {name}")
        return self._files[found].get_tensor(found).float()

    def _find(self, name: str) -> str | None:
        return next((p + name for p in PREFIXES if p + name in self._files), None)

    def _array(self, name: str) -> np.ndarray:
        """torch's bfloat16 and float8 as ml_dtypes', which NumPy can hold."""
        import ml_dtypes

        tensor = self._files[name].get_tensor(name)
        raw = {torch.bfloat16: torch.int16, torch.float8_e4m3fn: torch.uint8}.get(tensor.dtype)
        if raw is None:
            return tensor.numpy()
        narrow = {torch.int16: ml_dtypes.bfloat16, torch.uint8: ml_dtypes.float8_e4m3fn}[raw]
        return tensor.view(raw).numpy().view(narrow)


class ChosenExperts(nn.Module):
    """Stands in for all experts of a layer; each is read when a token has chosen it."""

    def __init__(self, weight: Callable[[str], torch.Tensor]):
        super().__init__()
        self._weight = weight

    def forward(
        self, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        total = torch.zeros_like(hidden)
        for expert in chosen.unique().tolist():
            gate, up, down = (self._weight(f"{expert}.{n}_proj") for n in ("gate", "up", "down"))
            rows, choice = torch.where(chosen == expert)
            x = hidden[rows]
            inner = nn.functional.silu(x @ gate.T) * (x @ up.T)
            total.index_add_(0, rows, (inner @ down.T) * weights[rows, choice, None])
        return total


class TorchModel:
    """The parts of the published model that a comparison walks through, float32."""

    def __init__(self, directory: Path, stack: ExitStack):
        published = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        text: dict[str, Any] = dict(published.get("text_config") or published)
        text.pop("quantization_config", None)
        self.config = DeepseekV3Config(**text)
        self.config._attn_implementation = "eager"
        self._tensors = PublishedTensors(directory, stack)
        self._rotary = deepseek.DeepseekV3RotaryEmbedding(self.config)

    def embed(self, token_ids: list[int]) -> torch.Tensor:
        """[1, tokens, hidden]"""
        return self._tensors.weight("embed_tokens")[token_ids][None]

    @torch.no_grad()
    def layer(self, index: int, x: torch.Tensor) -> torch.Tensor:
        """One decoder layer, attention causal over the rows of x."""
        layer = self._load_layer(index)
        length = x.shape[1]
        mask = torch.full((length, length), float("-inf")).triu(1)[None, None]
        positions = self._rotary(x, torch.arange(length)[None])
        return layer(x, attention_mask=mask, position_embeddings=positions)

    @torch.no_grad()
    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Final norm and head."""
        norm = deepseek.DeepseekV3RMSNorm(self.config.hidden_size, eps=self.config.rms_norm_eps)
        norm.weight.data = self._tensors.weight("norm")
        return norm(x) @ self._tensors.weight("lm_head").T

    def _load_layer(self, index: int) -> nn.Module:
        prefix = f"layers.{index}"
        with torch.device("meta"):
            layer = deepseek.DeepseekV3DecoderLayer(self.config, index)
        mlp: Any = layer.mlp
        if hasattr(mlp, "experts"):
            mlp.experts = ChosenExperts(
                lambda name: self._tensors.weight(f"{prefix}.mlp.experts.{name}")
            )
            name = f"{prefix}.mlp.gate.e_score_correction_bias"
            mlp.gate.e_score_correction_bias = nn.Buffer(self._tensors.tensor(name))
        for name, parameter in list(layer.named_parameters()):
            module = f"{prefix}.{name.removesuffix('.weight')}"
            owner = layer.get_submodule(name.rpartition(".")[0])
            loaded = self._tensors.weight(module)
            if loaded.shape != parameter.shape:
                shapes = f"{tuple(parameter.shape)}, got {tuple(loaded.shape)}"
                raise ValueError(f"{module}.weight: transformers expects shape {shapes}")
            owner.weight = nn.Parameter(loaded, requires_grad=False)
        return layer.eval()
