"""A published target cut down to gigabytes, with bytes in it: what `eagle3-bench load` reads.

As a command: `python tests/convert/filled_checkpoint.py kimi-k2.5-mxfp4 DIR`.
"""

import json
import sys
from pathlib import Path

import numpy as np
from sparse_checkpoint import PUBLISHED, Listed, listed_tensors, write_header

LAYERS, EXPERTS, VOCABULARY = 3, 24, 20_480
MASK = 0x3F
"""Every format's numbers stay finite."""


def write_filled(name: str, directory: Path) -> int:
    """Layers, experts and vocabulary are cut, vision is left out; returns the bytes of tensors."""
    manifest, config = (
        json.loads((PUBLISHED / f"{name}.{kind}.json").read_text(encoding="utf-8"))
        for kind in ("manifest", "config")
    )
    text = config.get("text_config", config)
    smaller = {text["n_routed_experts"]: EXPERTS, text["vocab_size"]: VOCABULARY}
    text |= {"num_hidden_layers": LAYERS, "n_routed_experts": EXPERTS, "vocab_size": VOCABULARY}
    config.pop("vision_config", None)
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    most = {"L": LAYERS, "E": EXPERTS}
    tensors = [cut(one, smaller) for one in listed_tensors(manifest, most) if is_text(one[0])]
    rng = np.random.default_rng(0)
    file = directory / "model.safetensors"
    write_header(file, tensors)
    with file.open("ab") as out:
        for *_, nbytes in tensors:
            out.write((rng.integers(0, 256, nbytes, np.uint8) & MASK).tobytes())
    return sum(nbytes for *_, nbytes in tensors)


def is_text(name: str) -> bool:
    return "vision" not in name and "mm_projector" not in name


def cut(tensor: Listed, smaller: dict[int, int]) -> Listed:
    """Its first axis, if that counts what is cut."""
    name, dtype, shape, nbytes = tensor
    if not shape or shape[0] not in smaller:
        return tensor
    rows = smaller[shape[0]]
    return name, dtype, [rows, *shape[1:]], nbytes // shape[0] * rows


if __name__ == "__main__":
    print(f"{write_filled(sys.argv[1], Path(sys.argv[2]))} bytes")
