"""The quantisation schemes of `--scheme`, by name."""

from convert.published.forms import FP8_BLOCK, FP8_CHANNEL, INT4_GROUP, INT4_LINEAR, MXFP4
from convert.quantize.schemes import fp8, int4
from convert.quantize.schemes.mxfp4 import encode_mxfp4
from convert.quantize.schemes.quantizer import Quantizer
from pallas_kernels.quantized.formats import BLOCK, GROUP

_WORD, _GROUP = (8, "eight INT4 values share a word"), (GROUP, f"{GROUP} inputs share a scale")
_SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Quantizer("ptpc_fp8", FP8_CHANNEL, fp8.encode_channels),
        Quantizer("int4", INT4_LINEAR, int4.encode_channels, _WORD),
        Quantizer("mxfp4", MXFP4, encode_mxfp4, _GROUP, scale_dtype="U8"),
        Quantizer("fp8_block", FP8_BLOCK, fp8.encode_blocks, row_block=BLOCK),
    )
}
_INT4_GROUPS = Quantizer("int4", INT4_GROUP, int4.encode_groups, _GROUP, scale_dtype="BF16")


def scheme_of(name: str, group_size: int | None = None) -> Quantizer:
    """Return a scheme; a group size turns `int4` into the compressed-tensors form."""
    if group_size is None:
        return _SCHEMES[name]
    if name != "int4":
        raise ValueError(f"--group-size belongs to --scheme int4, not to {name}")
    # Published checkpoints of the family use only this group size, and we load no other.
    if group_size != GROUP:
        raise ValueError(f"--group-size must be {GROUP}, got {group_size}")
    return _INT4_GROUPS
