"""Constants of the GPUs that can be planned for, with their sources."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from eagle3_tools.plan.data.tuned import KernelKind, Tuned

GIB = 1 << 30
_MIB, _US = 1 << 20, 1e-6


@dataclass(frozen=True)
class Gpu:
    """Constants of one GPU; rates are bytes and dense FLOP a second.

    memory: bytes that the driver reports. matrix: peak by multiplied type (see `rate`). peer_link:
    to one peer in one direction; all_links: to all of them. tuned: by kind of kernel. all_reduce:
    seconds, and the fraction of the links that it reaches.
    """

    name: str
    arch: str
    memory: int
    bandwidth: float
    matrix: Mapping[str, float]
    peer_link: float
    all_links: float
    all_reduce: Tuned
    published: Mapping[KernelKind, Tuned] | None = None

    @property
    def tuned(self) -> Mapping[KernelKind, Tuned]:
        """Fits to published kernels, or the model of our own if there are none."""
        return self.published or self.modelled

    @property
    def modelled(self) -> Mapping[KernelKind, Tuned]:
        """Constants of our own kernels, by the model of their compiled code."""
        from eagle3_tools.plan.data.modelled import modelled

        return modelled(self.arch)

    @property
    def ours(self) -> "Gpu":
        """This GPU with the model of our own kernels in place of published ones."""
        return replace(self, published=None)

    def rate(self, activations: str) -> float:
        """Return the peak of a product with these activations, at least that of bfloat16."""
        return self.matrix.get(activations, self.matrix["none"])


def _matrix(bf16: float, fp8: float, fp4: float | None = None) -> Mapping[str, float]:
    eight_bit = dict.fromkeys(("fp8_token", "fp8_group", "int8_token"), fp8)
    four_bit = {"mxfp4": fp4} if fp4 else {}
    return MappingProxyType({"none": bf16, **eight_bit, **four_bit})


_AITER: Mapping[KernelKind, Tuned] = {
    "gemm": Tuned(4.0 * _US, 0.75, 0.5),
    "experts": Tuned(15.3 * _US, 0.84, 0.4),
    "experts_int4": Tuned(20.0 * _US, 0.65, 0.4),
    "attention": Tuned(17.0 * _US, 0.64, 0.22),
    "small": Tuned(2.5 * _US, 0.5, 1.0),
}
MI355X = Gpu(
    "MI355X",
    "gfx950",
    memory=288 * GIB - 16 * _MIB,
    bandwidth=8.0e12,
    matrix=_matrix(2.5e15, 5.0e15, 10.0e15),
    peer_link=76.8e9,
    all_links=7 * 76.8e9,
    all_reduce=Tuned(6.5 * _US, 0.75, 1.0),
    published=_AITER,
)
MI325X = Gpu(
    "MI325X",
    "gfx942",
    memory=256 * GIB - 16 * _MIB,
    bandwidth=6.0e12,
    matrix=_matrix(1.3e15, 2.6e15),
    peer_link=64e9,
    all_links=7 * 64e9,
    all_reduce=Tuned(7.0 * _US, 0.75, 1.0),
)
MI300X = replace(MI325X, name="MI300X", memory=192 * GIB - 16 * _MIB, bandwidth=5.3e12)
H200 = Gpu(
    "H200",
    "sm_90",
    memory=139 * GIB,
    bandwidth=4.8e12,
    matrix=_matrix(0.99e15, 1.98e15),
    peer_link=450e9,
    all_links=450e9,
    all_reduce=Tuned(6.0 * _US, 0.75, 1.0),
)
GPUS = {gpu.name: gpu for gpu in (MI355X, MI325X, MI300X, H200)}

HOST_LINK = 64e9
"""Bytes a second between a GPU and its host in one direction, for all GPUs: PCIe 5.0 x16."""

SOURCES = (
    (
        "memory",
        "what drivers show: MI300X 196592 MiB (ROCm issue 4750), MI325X 262128 MiB (amd-smi); "
        "MI355X by the same rule, 16 MiB less than 288 GiB; H200 as CUDA shows it",
    ),
    ("to the host", "PCIe 5.0 x16, 64 GB/s in one direction; copies reach less"),
    ("bandwidth, matrix, links", "datasheets of AMD and NVIDIA: HBM, dense peaks, one direction"),
    (
        "tuned, MI355X",
        "least-squares fits of a + bytes / (e x HBM) to the tuned kernels that AITER publishes "
        "(ROCm/aiter at e404860). gemm: kimik2_bf16_tuned_gemm.csv and others, a 4.15 us (n = 70), "
        "fp8 3.55 us (n = 111), e of the one row that no cache holds (615 MB); experts: "
        "kimik2_fp4_tuned_fmoe.csv (n = 18), int4: kimik2_i4_tuned_fmoe.csv (n = 25); attention: "
        "gluon/README.md; small: a guess",
    ),
    ("all-reduce", "vllm issue 39080: MI355X, 8 GPUs, 6.3 to 7.5 us up to 384 KB"),
    (
        "tuned, MI325X, MI300X, H200; our kernels, MI355X",
        "model, not measured: fits to what the model of our compiled kernels predicts for the "
        "recorded cases of each (docs/kernel_model.md); MI300X by MI325X's",
    ),
    ("shares of peak", "0.5 dense, 0.4 experts: guesses; 0.22 latent attention: AITER's README"),
)
"""Constants and their sources."""
