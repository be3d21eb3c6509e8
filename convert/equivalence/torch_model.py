"""Run transformers' model with the weights of a published checkpoint, layer by layer."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import nn
from transformers import AutoConfig

from convert.files.safetensors_files import open_checkpoint
from convert.published.read_parameter import read_dequantized
from convert.published.weights import find_weights
from eagle3_jax.config.targets import READERS

PREFIXES = ("language_model.model.", "language_model.", "model.", "")


@dataclass(frozen=True)
class TorchFamily:
    """A model of transformers, by its `model_type` there.

    `mlp` and `expert_names` are names in files: of a layer's `mlp`; of an expert's gate, up and
    down.
    """

    model_type: str
    mlp: str = "mlp"
    expert_names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")

    def part(self, name: str) -> Any:
        """Return a class such as `DecoderLayer`; ImportError if transformers is too old."""
        config = type(AutoConfig.for_model(self.model_type))
        module = import_module(config.__module__.replace("configuration", "modeling"))
        return getattr(module, config.__name__.removesuffix("Config") + name)

    def published_name(self, path: str) -> str:
        """Return the name in the files for a path within a layer."""
        first, dot, rest = path.partition(".")
        return (self.mlp if first == "mlp" else first) + dot + rest


OTHER_NAMES = {
    "kimi_k2": TorchFamily("deepseek_v3"),
    "minimax_m2": TorchFamily("minimax_m2", "block_sparse_moe", ("w1", "w3", "w2")),
}
"""Models by the `model_type` in config.json, where transformers has other names than the files."""


def torch_family(model_type: object) -> TorchFamily:
    """Return the family of a target's `model_type`; ValueError if no target has this type."""
    if model_type not in READERS:
        known = ", ".join(READERS)
        raise ValueError(
            f"model_type must be one of {known}, which transformers has too; got {model_type!r}"
        )
    return OTHER_NAMES.get(f"{model_type}", TorchFamily(f"{model_type}"))


class PublishedTensors:
    """Tensors of a directory by the text model's names, read with the safetensors library."""

    def __init__(self, directory: Path, stack: ExitStack):
        files = sorted(directory.glob("*.safetensors"))
        opened = [stack.enter_context(safe_open(file, framework="pt")) for file in files]
        self._files = {name: file for file in opened for name in file.keys()}
        weights, _ = find_weights(open_checkpoint(directory).tensors.values())
        self._quantized = {weight.name: weight for weight in weights if weight.form}

    def weight(self, module: str) -> torch.Tensor:
        """Return `module.weight` in float32, dequantised if the file stores it quantised."""
        names = (prefix + f"{module}.weight" for prefix in PREFIXES)
        found = next((self._quantized[name] for name in names if name in self._quantized), None)
        if found is not None:
            return torch.from_numpy(np.array(read_dequantized(found)))
        return self.tensor(f"{module}.weight")

    def tensor(self, name: str) -> torch.Tensor:
        """Return a tensor that is not quantised, in float32."""
        found = next((p + name for p in PREFIXES if p + name in self._files), None)
        if found is None:
            raise ValueError(f"the checkpoint has no {name}")
        return self._files[found].get_tensor(found).float()


class ChosenExperts(nn.Module):
    """Replacement for all experts of a layer, which reads only experts that tokens select."""

    def __init__(self, weight: Callable[[str], torch.Tensor], names: tuple[str, str, str]):
        super().__init__()
        self._weight = weight
        self._names = names

    def forward(
        self, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        total = torch.zeros_like(hidden)
        for expert in chosen.unique().tolist():
            gate, up, down = (self._weight(f"{expert}.{name}") for name in self._names)
            rows, choice = torch.where(chosen == expert)
            x = hidden[rows]
            inner = nn.functional.silu(x @ gate.T) * (x @ up.T)
            total.index_add_(0, rows, (inner @ down.T) * weights[rows, choice, None])
        return total


class TorchModel:
    """The parts of the published model that a comparison runs, in float32; see `OurModel`."""

    def __init__(self, directory: Path, stack: ExitStack):
        published = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        text: dict[str, Any] = dict(published.get("text_config") or published)
        text.pop("quantization_config", None)
        self._family = torch_family(text.get("model_type"))
        self.config = self._family.part("Config")(**text)
        self.config._attn_implementation = "eager"
        self._tensors = PublishedTensors(directory, stack)
        self._rotary = self._family.part("RotaryEmbedding")(self.config)

    def embed(self, token_ids: list[int]) -> torch.Tensor:
        return self._tensors.weight("embed_tokens")[token_ids][None]

    @torch.no_grad()
    def layer(self, index: int, x: torch.Tensor) -> torch.Tensor:
        layer = self._load_layer(index)
        length = x.shape[1]
        mask = torch.full((length, length), float("-inf")).triu(1)[None, None]
        positions = self._rotary(x, torch.arange(length)[None])
        return layer(x, attention_mask=mask, position_embeddings=positions)

    @torch.no_grad()
    def logits(self, x: torch.Tensor) -> torch.Tensor:
        norm = self._family.part("RMSNorm")(self.config.hidden_size, eps=self.config.rms_norm_eps)
        norm.weight.data = self._tensors.weight("norm")
        return norm(x) @ self._tensors.weight("lm_head").T

    def _load_layer(self, index: int) -> nn.Module:
        with torch.device("meta"):
            layer = self._family.part("DecoderLayer")(self.config, index)

        def published(path: str) -> str:
            return f"layers.{index}.{self._family.published_name(path)}"

        if hasattr(layer.mlp, "experts"):
            layer.mlp.experts = ChosenExperts(
                lambda name: self._tensors.weight(published(f"mlp.experts.{name}")),
                self._family.expert_names,
            )
        for path, _ in list(layer.named_buffers()):
            owner, _, name = path.rpartition(".")
            loaded = self._tensors.tensor(published(path))
            setattr(layer.get_submodule(owner), name, nn.Buffer(loaded))
        for path, parameter in list(layer.named_parameters()):
            module = published(path.removesuffix(".weight"))
            owner = layer.get_submodule(path.rpartition(".")[0])
            loaded = self._tensors.weight(module)
            if loaded.shape != parameter.shape:
                shapes = f"{tuple(parameter.shape)}, got {tuple(loaded.shape)}"
                raise ValueError(f"{module}.weight: transformers expects shape {shapes}")
            owner.weight = nn.Parameter(loaded, requires_grad=False)
        return layer.eval()
