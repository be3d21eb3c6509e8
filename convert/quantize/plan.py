"""Lay out the files of a quantised checkpoint, from headers alone."""

from collections import defaultdict
from dataclasses import dataclass, field

from convert.files.safetensors_files import Checkpoint, TensorInfo
from convert.quantize.schemes.quantizer import Part, Quantizer
from convert.quantize.select import Selection

WEIGHT = "weight"
LISTED = 20
"""Maximum number of weights that an error names."""


@dataclass(frozen=True)
class QuantizePlan:
    """The output's tensors by file. Each tensor stays in the file that it has in the source.

    `quantized` names the weights that are quantised.
    """

    source: Checkpoint = field(repr=False)
    scheme: Quantizer
    selection: Selection
    quantized: frozenset[str] = field(repr=False)
    files: dict[str, dict[str, Part]] = field(repr=False)

    @property
    def bytes_read(self) -> int:
        """Size of the source's tensors."""
        return sum(info.nbytes for info in self.source.tensors.values())

    @property
    def bytes_written(self) -> int:
        """Size of the output's tensors."""
        return sum(part.nbytes for parts in self.files.values() for part in parts.values())


def make_quantize_plan(source: Checkpoint, scheme: Quantizer, selection: Selection) -> QuantizePlan:
    """Lay out every file; one ValueError lists the weights that the scheme cannot store."""
    chosen = frozenset(f"{module}.{WEIGHT}" for module in selection.quantized)
    files: defaultdict[str, dict[str, Part]] = defaultdict(dict)
    misfits = []
    for name, info in source.tensors.items():
        try:
            written = parts_of(info, scheme if name in chosen else None)
        except ValueError as error:
            misfits.append(f"{name} {list(info.shape)}: {error}")
            continue
        files[info.file.name] |= written
    if misfits:
        more = [f"and {len(misfits) - LISTED} more"] if len(misfits) > LISTED else []
        listed = "\n  ".join([*misfits[:LISTED], *more])
        raise ValueError(f"{scheme.name} can't hold these weights; exclude them:\n  {listed}")
    return QuantizePlan(source, scheme, selection, chosen, dict(files))


def parts_of(info: TensorInfo, scheme: Quantizer | None) -> dict[str, Part]:
    """Return a source tensor's output tensors by full name; without a scheme, the tensor itself."""
    if scheme is None:
        return {info.name: Part(info.dtype, info.shape)}
    module = info.name.removesuffix(WEIGHT)
    return {module + part: written for part, written in scheme.parts(info.shape).items()}
