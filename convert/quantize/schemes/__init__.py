"""The schemes of `--scheme`, by name."""

from convert.quantize.schemes.fp8_block import Fp8Block
from convert.quantize.schemes.int4 import Int4Channel, Int4Group
from convert.quantize.schemes.mxfp4 import Mxfp4
from convert.quantize.schemes.ptpc_fp8 import PtpcFp8
from convert.quantize.schemes.quantizer import Quantizer

GROUP_SIZE = 32
"""The only one that published checkpoints of the family use, and the only one we load."""
_SCHEMES: dict[str, Quantizer] = {
    scheme.name: scheme for scheme in (PtpcFp8(), Int4Channel(), Mxfp4(), Fp8Block())
}
SCHEME_NAMES = tuple(_SCHEMES)


def scheme_of(name: str, group_size: int | None = None) -> Quantizer:
    """The scheme of a name; a group size turns `int4` into the compressed-tensors form."""
    if group_size is None:
        return _SCHEMES[name]
    if name != "int4":
        raise ValueError(f"--group-size belongs to --scheme int4, not to {name}")
    if group_size != GROUP_SIZE:
        raise ValueError(f"--group-size must be {GROUP_SIZE}, got {group_size}")
    return Int4Group(group_size)
