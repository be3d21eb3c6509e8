"""Which of transformers' models each published one is, and what their files name in another way."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class TorchFamily:
    """A model of transformers: its package, and what its classes' names begin with.

    mlp: what files call a layer's `mlp`. expert_names: an expert's gate, up and down in files.
    """

    package: str
    classes: str
    mlp: str = "mlp"
    expert_names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")

    def part(self, name: str) -> Any:
        """A class such as its `DecoderLayer`; ImportError where transformers is too old for it."""
        module = import_module(f"transformers.models.{self.package}.modeling_{self.package}")
        return getattr(module, self.classes + name)

    def published_name(self, path: str) -> str:
        """The name in files of what has this path in a layer."""
        first, dot, rest = path.partition(".")
        return (self.mlp if first == "mlp" else first) + dot + rest


FAMILIES = {
    "kimi_k2": TorchFamily("deepseek_v3", "DeepseekV3"),
    "deepseek_v3": TorchFamily("deepseek_v3", "DeepseekV3"),
    "minimax_m2": TorchFamily("minimax_m2", "MiniMaxM2", "block_sparse_moe", ("w1", "w3", "w2")),
    "llama": TorchFamily("llama", "Llama"),
}
"""By the `model_type` of a text model's config.json."""


def require_transformers() -> None:
    """Raises ImportError, naming the extra, where torch or transformers is not installed."""
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"{error}; transformers and torch come with pip install 'eagle3-jax[transformers]'"
        ) from error


def torch_family(model_type: object) -> TorchFamily:
    """Raises ValueError for a model that there is nothing to compare with."""
    if model_type not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise ValueError(
            f"model_type must be one of {known}, which transformers has too; got {model_type!r}"
        )
    return FAMILIES[str(model_type)]
