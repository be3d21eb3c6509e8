"""Constants that the model assumes for each GPU, with their sources.

Those of MI355X fit published times of 200 kernels, those of an H200 this project's measurements
(docs/kernel_model.md). Those of MI325X are MI355X's at its clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

_KIB = 1024


@dataclass(frozen=True)
class ModelGpu:
    """Constants of one GPU.

    units: compute units (AMD) or multiprocessors (NVIDIA), each with `simds` SIMDs. hz: clock. hbm:
    bytes a second by the datasheet; reached: fraction that streaming kernels reach. latency:
    seconds from a load to its data, while memory is not busy. waves: most on a SIMD; registers: of
    a lane, for all waves together; granule: allocation unit. lds: bytes of a unit; lds_rate: bytes
    a clock. caches: bytes a second that all units load, from caches or memory. dispatch: programs
    a second that begin and end without work. graph_gap: seconds between two kernels in sequence
    without the host.
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
    caches: float
    dispatch: float
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
    latency=0.4e-6,
    simds=4,
    waves=8,
    registers=512,
    granule=8,
    lds=160 * _KIB,
    lds_rate=256,
    caches=13.0e12,
    dispatch=3.0e9,
    graph_gap=2.4e-6,
)
MI325X = ModelGpu(
    name="MI325X",
    arch="gfx942",
    units=304,
    hz=2.1e9,
    hbm=6.0e12,
    reached=0.85,
    latency=0.45e-6,
    simds=4,
    waves=8,
    registers=512,
    granule=8,
    lds=64 * _KIB,
    lds_rate=128,
    caches=11.4e12,
    dispatch=2.6e9,
    graph_gap=2.8e-6,
)
H200 = ModelGpu(
    name="H200",
    arch="sm_90",
    units=132,
    hz=1.755e9,
    hbm=4.8e12,
    reached=0.9,
    latency=1.05e-6,
    simds=4,
    waves=16,
    registers=512,
    granule=8,
    lds=227 * _KIB,
    lds_rate=128,
    caches=8.5e12,
    dispatch=3.0e9,
    graph_gap=1.3e-6,
)
BY_ARCH: Mapping[str, ModelGpu] = MappingProxyType({g.arch: g for g in (MI355X, MI325X, H200)})

ASSUMPTIONS = (
    ("units, clock, HBM, LDS, registers", "datasheets and ISA documents of AMD and NVIDIA"),
    (
        "latency of memory that is not busy: 0.4 us (MI355X), 1.05 us (H200, code before ptxas); "
        "all loads of all programs: 13 and 8.5 TB/s; start and end of a launch: 2.4 us (MI355X)",
        "fits to the published times below and to docs/benchmarks/h200.json; MI325X: MI355X's at "
        "its clock, a guess; a third of the latency where a cache has an array",
    ),
    (
        "of the datasheet's HBM rate 0.85 (AMD), 0.9 (H200) is reached",
        "AITER's largest tuned kernels (e 0.84 and 0.85); this H200 read 0.91",
    ),
    (
        "3,000 programs a us without work begin and end (MI355X, H200)",
        "AITER's experts with one token: 10,000 to 21,000 of their programs have none; a guess "
        "for H200",
    ),
    (
        "matrix clocks",
        "operations a clock and unit in the white papers of CDNA3 and CDNA4; vector instructions "
        "take 4 clocks a wave, transcendental ones and 32-bit products 16",
    ),
    (
        "LDS: 128 B a clock (gfx942), 256 B (gfx950), 128 clocks to the data",
        "white papers; bank conflicts are not counted",
    ),
    ("between two kernels on an H200: 1.3 us", "a guess"),
    (
        "not in the model",
        "conflicts of banks and channels, translation of addresses, lines that narrow loads touch "
        "in part, what the last-level cache keeps from one call to the next, throttling",
    ),
)
"""Assumptions of the model and their sources."""
