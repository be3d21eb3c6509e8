"""Published kernel times, compared with the model of a kernel that keeps memory busy.

The code of these kernels is not published, so the model assumes the best case: all bytes at the
rate of streaming kernels, and for each launch the latencies at its start and end and the gap.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from eagle3_tools.kernel_model.gpus import MI355X
from eagle3_tools.plan.model.target_work import distinct_experts

_LATENCIES = 2
_TOKENS = (1, 4, 16, 64, 256)


@dataclass(frozen=True)
class Peer:
    """One published time on MI355X. nbytes: bytes that must be read; launches: lower bound."""

    name: str
    nbytes: float
    us: float
    launches: int = 1

    @property
    def model_us(self) -> float:
        """Time by the model in microseconds."""
        each = _LATENCIES * MI355X.latency + MI355X.graph_gap
        return 1e6 * (self.nbytes / (MI355X.hbm * MI355X.reached) + self.launches * each)


SOURCE = (
    "AITER's tuned rows (ROCm/aiter at e404860: kimik2_bf16_tuned_gemm.csv, "
    "a8w8_bpreshuffle..., kimik2_fp4_tuned_fmoe.csv, kimik2_i4_tuned_fmoe.csv, gluon/README.md); "
    "of vLLM's Triton MLA no time at such shapes was found"
)


def peers() -> Iterator[Peer]:
    """Yield the published times at decode shapes."""
    for shape, rows, us in (
        *(((2112, 7168), rows, us) for rows, us in ((4, 8.4), (16, 9.1), (64, 13.7))),
        ((384, 7168), 64, 7.7),
        *(((7168, 2048), rows, us) for rows, us in ((1, 7.6), (64, 10.1))),
        *(((16160, 7168), rows, us) for rows, us in ((1, 36.6), (64, 42.6))),
        *(((50016, 6144), rows, us) for rows, us in ((1, 102), (64, 128))),
    ):
        yield Peer(
            f"AITER bf16 {shape[0]} x {shape[1]}, {rows} rows", 2.0 * shape[0] * shape[1], us
        )
    for shape, rows, us in (
        *(((7168, 4096), rows, us) for rows, us in ((1, 8.3), (64, 9.7))),
        *((shape, 1, us) for shape, us in (((8192, 7168), 13.3), ((14336, 8192), 21.9))),
        ((57344, 8192), 1, 78.0),
    ):
        yield Peer(f"AITER fp8 {shape[0]} x {shape[1]}, {rows} rows", 1.0 * shape[0] * shape[1], us)
    for name, of_weight, times in (
        ("MXFP4", 17 / 32, (22, 39, 103, 264, 367)),
        ("INT4", 9 / 16, (29, 57, 154, 356, 475)),
    ):
        for tokens, us in zip(_TOKENS, times, strict=True):
            read = distinct_experts(384, 8, tokens) * 3 * 7168 * 512 * of_weight
            yield Peer(f"AITER experts {name}, TP 4, {tokens} tokens", read, us, launches=2)
    for batch, context, us in ((4, 10_000, 26.0), (4, 100_000, 107.0), (1, 10_000_000, 2161.0)):
        name = f"AITER MLA bf16, 16 heads, {batch} x {context:,} slots"
        yield Peer(name, 1152.0 * batch * context, us, launches=2)
