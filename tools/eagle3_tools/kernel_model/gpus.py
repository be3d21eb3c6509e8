"""Constants that the model assumes for each GPU, with their sources.

This project measured none of them; docs/kernel_model.md has measurements of an H200.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

_KIB = 1024


@dataclass(frozen=True)
class ModelGpu:
    """Constants of one GPU. Rates are bytes a clock of one unit.

    units: compute units (AMD) or multiprocessors (NVIDIA), each with `simds` SIMDs. hz: clock. hbm:
    bytes a second by the datasheet; reached: fraction that streaming kernels reach. latency:
    seconds from a load to its data under load. waves: most on a SIMD; registers: of a lane, for all
    waves together; granule: allocation unit. lds: bytes of a unit. access_clocks: of a unit's load
    path, for one access of a wave. graph_gap: seconds between two kernels in sequence without the
    host.
    """

    name: str
    arch: str
    units: int
    hz: float
    hbm: float
    reached: float
    latency: float
    simds: int
    waves: int
    registers: int
    granule: int
    lds: int
    lds_rate: int
    access_clocks: int
    graph_gap: float

    @property
    def needed(self) -> float:
        """Bytes in flight a unit that keep memory busy, by Little's law."""
        return self.hbm * self.latency / self.units

    @property
    def latency_clocks(self) -> float:
        return self.latency * self.hz


MI355X = ModelGpu(
    name="MI355X",
    arch="gfx950",
    units=256,
    hz=2.4e9,
    hbm=8.0e12,
    reached=0.85,
    latency=0.9e-6,
    simds=4,
    waves=8,
    registers=512,
    granule=8,
    lds=160 * _KIB,
    lds_rate=256,
    access_clocks=16,
    graph_gap=2.0e-6,
)
MI325X = ModelGpu(
    name="MI325X",
    arch="gfx942",
    units=304,
    hz=2.1e9,
    hbm=6.0e12,
    reached=0.85,
    latency=0.9e-6,
    simds=4,
    waves=8,
    registers=512,
    granule=8,
    lds=64 * _KIB,
    lds_rate=128,
    access_clocks=16,
    graph_gap=2.5e-6,
)
H200 = ModelGpu(
    name="H200",
    arch="sm_90",
    units=132,
    hz=1.755e9,
    hbm=4.8e12,
    reached=0.9,
    latency=0.68e-6,
    simds=4,
    waves=16,
    registers=512,
    granule=8,
    lds=227 * _KIB,
    lds_rate=128,
    access_clocks=8,
    graph_gap=1.3e-6,
)
BY_ARCH: Mapping[str, ModelGpu] = MappingProxyType({g.arch: g for g in (MI355X, MI325X, H200)})

ASSUMPTIONS = (
    ("units, clock, HBM, LDS, registers", "datasheets and ISA documents of AMD and NVIDIA"),
    (
        "latency of memory under load: 0.9 us (AMD), 0.68 us (H200)",
        "guesses above what public micro-benchmarks of MI300X and H100 show without load; a third "
        "of it where an array is small or read again and again, so that a cache has it",
    ),
    (
        "of the datasheet's HBM rate 0.85 (AMD), 0.9 (H200) is reached",
        "AITER's largest tuned kernels (e 0.84 and 0.85); FlashMLA's 3.0 of 3.35 TB/s",
    ),
    (
        "matrix clocks",
        "operations a clock and unit in the white papers of CDNA3 and CDNA4; vector instructions "
        "take 4 clocks a wave, transcendental ones and 32-bit products 16",
    ),
    (
        "an access of global memory takes 16 clocks of a unit's load path, whatever its width",
        "64 lanes, four addresses a clock: GCN's and CDNA's address coalescing",
    ),
    (
        "LDS: 128 B a clock (gfx942), 256 B (gfx950), 128 clocks to the data",
        "white papers; bank conflicts are not counted",
    ),
    (
        "between two kernels: 2.0 us (MI355X), 2.5 us (MI325X), 1.3 us (H200)",
        "AITER's fits less two latencies; guesses for the others",
    ),
    (
        "not in the model",
        "conflicts of banks and channels, translation of addresses, what the last-level cache "
        "keeps from one call to the next, throttling",
    ),
)
"""Assumptions of the model and their sources."""
