"""Map published model types to transformers' classes and names."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class TorchFamily:
    """One of transformers' model packages, and the prefix of its class names.

    `mlp` and `expert_names` are names in files: of a layer's `mlp`; of an expert's gate, up and
    down.
    """

    package: str
    classes: str
    mlp: str = "mlp"
    expert_names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")

    def part(self, name: str) -> Any:
        """Return a class such as `DecoderLayer`; ImportError if transformers is too old."""
        module = import_module(f"transformers.models.{self.package}.modeling_{self.package}")
        return getattr(module, self.classes + name)

    def published_name(self, path: str) -> str:
        """Return the name in the files for a path within a layer."""
        first, dot, rest = path.partition(".")
        return (self.mlp if first == "mlp" else first) + dot + rest


FAMILIES = {
    "kimi_k2": TorchFamily("deepseek_v3", "DeepseekV3"),
    "deepseek_v3": TorchFamily("deepseek_v3", "DeepseekV3"),
    "minimax_m2": TorchFamily("minimax_m2", "MiniMaxM2", "block_sparse_moe", ("w1", "w3", "w2")),
    "llama": TorchFamily("llama", "Llama"),
}
"""Model families by the `model_type` of the text model's config.json."""


def require_transformers() -> None:
    """Raise ImportError, naming the extra, if torch or transformers is not installed."""
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"{error}; transformers and torch come with pip install 'eagle3-jax[transformers]'"
        ) from error


def torch_family(model_type: object) -> TorchFamily:
    """Return the family of a `model_type`; ValueError if transformers has no counterpart."""
    if model_type not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise ValueError(
            f"model_type must be one of {known}, which transformers has too; got {model_type!r}"
        )
    return FAMILIES[str(model_type)]
