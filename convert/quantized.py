"""Recognise quantised checkpoints by their tensors; the configuration is not to be trusted here."""

from convert.safetensors_files import Checkpoint, TensorInfo

FORMATS = (
    ("weight_packed", None, "INT4 of compressed-tensors (pack-quantized)"),
    ("weight_scale_2", None, "INT4 weights with FP8 scales of Quark (W4A8)"),
    ("weight_scale_inv", None, "FP8 in 128x128 blocks"),
    ("weight", "U8", "MXFP4 of Quark"),
    ("weight", "I32", "INT4 of Quark"),
    ("weight", "F8_E4M3", "FP8 per channel of Quark (ptpc_fp8)"),
    ("weight_scale", None, "quantised, of unknown kind"),
)
"""Last part of the tensor's name, its dtype (None: any), what that means; first match holds."""


def refuse_quantized(checkpoint: Checkpoint) -> None:
    """Raises ValueError naming the format when the checkpoint holds quantised weights."""
    for ending, dtype, meaning in FORMATS:
        found = next((t for t in checkpoint.tensors.values() if _fits(t, ending, dtype)), None)
        if found:
            raise ValueError(
                f"{checkpoint.directory} is quantised: {meaning}, as {found.name} ({found.dtype}) "
                "shows; only F32, BF16 and F16 weights can be loaded so far"
            )


def _fits(tensor: TensorInfo, ending: str, dtype: str | None) -> bool:
    return tensor.name.split(".")[-1] == ending and dtype in (None, tensor.dtype)
