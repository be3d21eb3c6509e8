"""Compilation of AITER's Triton kernels for a GPU that is not here: `compile.py AITER FOLDER`.

Runs with Triton and NumPy alone. Each launch becomes NAME.hsaco and NAME.json: its grid and its
arguments as sizes. AITER's modules are imported from its checkout; PyTorch and the rest of AITER
are replaced by mocks, because kernels need only Triton.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
import types
from math import prod
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import MagicMock

ARCH, KERNELS = "gfx950", "aiter.ops.triton"
EXPERTS, CHOSEN, HIDDEN = 384, 8, 7168
ROWS = (4, 16, 64, 256)
"""Rows of a verification with k = 3 and 1, 4, 16 and 64 sequences."""
BF16 = {"kimi.q_a_proj@tp1": (2112, 7168), "kimi.lm_head@tp4": (40960, 7168)}
FP8 = {
    f"kimi.{name}@tp{devices}": shape
    for devices in (4, 8)
    for name, shape in (("q_b_proj", (12288 // devices, 1536)), ("o_proj", (7168, 8192 // devices)))
}
_BITS = {"bf16": 16, "fp32": 32, "i32": 32, "u8": 8, "fp8e4nv": 8}


class Array(NamedTuple):
    """An array on the device, of which a launch needs type and size."""

    type: str
    shape: tuple[int, ...]
    written: bool = False

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * _BITS[self.type] // 8


class _Mocks(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports kernels from the checkout, and anything else of PyTorch and AITER as a mock."""

    def __init__(self, aiter: Path) -> None:
        self.kernels = aiter / "aiter/ops/triton"

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] not in ("torch", "aiter"):
            return None
        if name.startswith(f"{KERNELS}."):
            inside = name.removeprefix(f"{KERNELS}.").split(".")
            file = self.kernels.joinpath(*inside).with_suffix(".py")
            if file.exists():
                return importlib.util.spec_from_file_location(name, file)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        module = MagicMock(name=spec.name)
        module.__path__, module.__spec__ = [], spec
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing: a mock has everything."""


def launch(
    folder: Path,
    case: str,
    part: str,
    kernel: Any,
    grid: int,
    given: tuple[Any, ...],
    named: dict[str, Any],
    **call: float,
) -> None:
    """Compile a launch as Triton's runtime would, and write its code and arguments.

    case: ours that does the same; part: which of its launches; given, named: the kernel's
    arguments; call: what kernel_model's Call and the reader take.
    """
    triton, compiler, backends = map(
        importlib.import_module, ("triton", "triton.compiler", "triton.backends.compiler")
    )
    rules = []
    while not hasattr(kernel, "params"):
        rules += [kernel.values] if hasattr(kernel, "values") else []
        kernel = kernel.fn
    names = [p.name for p in kernel.params]
    values = dict(zip(names, given, strict=False))
    values |= {k: v for k, v in named.items() if k in names}
    for rule in rules:
        values |= {key: compute(values) for key, compute in rule.items()}
    signature, constants, attributes, arguments = {}, {}, {}, []
    for p in kernel.params:
        value = values.get(p.name, p.default)
        if p.is_constexpr or not isinstance(value, Array | int | float) or value == 1:
            signature[p.name], constants[p.num,] = "constexpr", value
            continue
        if isinstance(value, Array):
            signature[p.name] = f"*{value.type}"
            attributes[p.num,] = [["tt.divisibility", 16]]
            attributes[p.num,] += [["tt.pointer_range", 32]] * (value.nbytes < 2**31)
            arguments.append({"bytes": value.nbytes, "written": value.written})
            continue
        is_float = isinstance(value, float)
        signature[p.name] = "fp32" if is_float else "i32" if value < 2**31 else "i64"
        if not is_float and value % 16 == 0:
            attributes[p.num,] = [["tt.divisibility", 16]]
        arguments.append({} if is_float else {"value": value})
    options = {k: v for k, v in named.items() if k not in names and v is not None}
    source = compiler.ASTSource(kernel, signature, constants, attributes)
    made = triton.compile(source, target=backends.GPUTarget("hip", ARCH, 64), options=options)
    name = f"{case} {part}"
    (folder / f"{name}.hsaco").write_bytes(made.asm["hsaco"])
    found = made.metadata
    facts = {"case": case, "arch": ARCH, "grid": [grid, 1, 1], "lds": found.shared}
    facts |= {"warps": found.num_warps, "stages": found.num_stages, "arguments": arguments, **call}
    (folder / f"{name}.json").write_text(json.dumps(facts), encoding="utf-8")


def product(aiter: Path, folder: Path, case: str, shape: tuple[int, int, int], kind: str) -> None:
    """Compile a product [m, k] x [k, n] with AITER's tuned tile; kind: bf16 or fp8."""
    m, n, k = shape
    module = {"bf16": "gemm_a16w16", "fp8": "gemm_a8w8"}[kind]
    peer = importlib.import_module(f"{KERNELS}._triton_kernels.gemm.basic.{module}")
    utils = importlib.import_module(f"{KERNELS}.utils.gemm_config_utils")
    family = {"bf16": "A16W16", "fp8": "A8W8"}[kind]
    table = aiter / "aiter/ops/triton/configs/gemm"
    own = table / f"{ARCH}-GEMM-{family}-N={n}-K={k}.json"
    tiles = json.loads((own if own.exists() else table / f"{ARCH}-GEMM-{family}.json").read_text())
    bounds = sorted(int(key.rpartition("_")[2]) for key in tiles if key.startswith("M_LEQ_"))
    key = next((f"M_LEQ_{bound}" for bound in bounds if m <= bound), "any")
    tile = utils.compute_splitk_params(dict(tiles[key]), k)
    split = tile["NUM_KSPLIT"]
    out = Array("bf16", (m, n), True) if split == 1 else Array("fp32", (split, m, n), True)
    steps = (0, n, 1) if split == 1 else (m * n, n, 1)
    grid = split * -(-m // tile["BLOCK_SIZE_M"]) * -(-n // tile["BLOCK_SIZE_N"])
    sizes = (m, n, k, k, 1, 1, k, *steps)
    if kind == "bf16":
        given = (Array("bf16", (m, k)), Array("bf16", (n, k)), None, out, *sizes)
        more = {"activation": "", "use_activation": False, "ADD_BIAS": False, "SKIP_REDUCE": False}
        launch(folder, case, "product", peer._gemm_a16_w16_kernel, grid, given, tile | more)
    else:
        rows, columns = Array("fp8e4nv", (m, k)), Array("fp8e4nv", (n, k))
        scales = Array("fp32", (m,)), Array("fp32", (n,))
        given = (rows, columns, *scales, None, out, *sizes, False)
        launch(folder, case, "product", peer._gemm_a8w8_kernel, grid, given, tile)
    if split > 1:
        common = importlib.import_module(f"{KERNELS}._triton_kernels.common.splitk_reduce")
        parts = -(-k // tile["SPLITK_BLOCK_SIZE"])
        sums = {"BLOCK_SIZE_M": 32, "BLOCK_SIZE_N": 32, "ACTUAL_KSPLIT": parts}
        sums |= {"MAX_KSPLIT": 1 << (split - 1).bit_length(), "ADD_BIAS": False, "activation": ""}
        sums |= {"use_activation": False, "KERNEL_NAME": "reduce"}
        given = (out._replace(written=False), Array("bf16", (m, n), True), None, m, n, m * n, n, 1)
        reduce, grid = common._gemm_splitk_reduce_kernel, -(-m // 32) * -(-n // 32)
        launch(folder, case, "reduce", reduce, grid, (*given, n, 1), sums)


def experts(folder: Path, case: str, tokens: int, inter: int) -> None:
    """Compile both launches of Kimi-K2.5's MXFP4 experts on MXFP4 rows, uniformly routed."""
    peer = importlib.import_module(f"{KERNELS}._triton_kernels.moe.moe_op_gemm_a4w4")
    chosen = EXPERTS * (1 - (1 - CHOSEN / EXPERTS) ** tokens)
    pairs, tile_n, tile_k = tokens * CHOSEN, 128, 256
    blocks = EXPERTS - 1 - (EXPERTS - pairs - 1) // 16 if pairs > EXPERTS else pairs
    for first, n, k in ((True, 2 * inter, HIDDEN), (False, HIDDEN, inter)):
        rows, halved = (tokens, 2) if first else (pairs, 1)
        x, x_scale = Array("u8", (rows, k // 2)), Array("u8", (rows, k // 32))
        w, w_scale = Array("u8", (EXPERTS, k // 2, n)), Array("u8", (EXPERTS, k, n // 32))
        y, columns = Array("bf16", (1, pairs, n // halved), True), n // halved
        given = (
            *(y, pairs * columns, columns, 1, x, k // 2, 1, x_scale, k // 32, 1),
            *(w, n * k // 2, 1, k // 2, w_scale, n * k // 32, 1, k, None, None),
            *(None if first else Array("fp32", (pairs,)), n, k),
            *(Array("i32", (pairs,)) if first else None, Array("i32", (EXPERTS,))),
            *(Array("i32", (EXPERTS + 1,)), Array("i32", (1,)), Array("i32", (blocks,)), blocks),
            *(-(-n // tile_n), first, 1.0, 1.0, halved, False),
        )
        tile = {"BLOCK_M": 16, "BLOCK_N": tile_n, "BLOCK_K": tile_k, "GROUP_M": 4, "SPLIT_K": 1}
        tile |= {"N_EXPTS_ACT": CHOSEN, "XCD_SWIZZLE": 1, "SWIZZLE_MX_SCALE": "CDNA4_SCALE"}
        tile |= {"EVEN_K": k % tile_k == 0, "MASK_K_LIMIT": k % tile_k, "UPCAST_INDICES": False}
        tile |= {"W_CACHE_MODIFIER": ".cg", "num_warps": 4, "num_stages": 2, "waves_per_eu": 0}
        grid, part = blocks * -(-n // tile_n), "gate_up" if first else "down"
        launch(
            *(folder, case, part, peer._moe_gemm_a4w4, grid, given),
            named=tile | {"matrix_instr_nonkdim": 16},
            touched=chosen / EXPERTS,
            live=min(1.0, chosen / blocks),
            trips=k // tile_k,
        )


def main(aiter: Path, folder: Path) -> None:
    """Compile all launches into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    sys.meta_path.insert(0, _Mocks(aiter))
    for m in ROWS:
        for kind, label, shapes in (("bf16", "bf16", BF16), ("fp8", "ptpc", FP8)):
            for case, (n, k) in shapes.items():
                product(aiter, folder, f"{case} {label} rows{m}", (m, n, k), kind)
        for devices in (4, 8):
            name = f"kimi.experts@tp{devices} mxfp4_mxfp4 tokens{m}"
            experts(folder, name, m, 2048 // devices)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
