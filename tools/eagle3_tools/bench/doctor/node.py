"""Versions, devices and limits of this machine for a bug report, without names or secrets."""

import os
import platform
import re
import resource
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from eagle3_tools.bench.doctor.findings import Finding
from eagle3_tools.checks.record import versions
from pallas_kernels.gpu import plugin_versions

PACKAGES = ("eagle3-jax", "jax", "jaxlib", "flax", "numpy")
ROOT = Path("/")
DRIVERS = {
    "ROCm": "opt/rocm/.info/version",
    "amdgpu": "sys/module/amdgpu/version",
    "NVIDIA": "proc/driver/nvidia/version",
}
VARIABLES = ("XLA_FLAGS", "JAX_PLATFORMS", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
VARIABLES += ("CUDA_VISIBLE_DEVICES", "HSA_NO_SCRATCH_RECLAIM")
VARIABLES += ("NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS")
"""Environment variables that change how JAX and collectives run."""
GIB = 1 << 30
BUSY = 0.05
"""Fraction of a card's memory that may be in use before our programs run."""
LEAST_SHARED_MEMORY = GIB
"""Bytes that collectives of one node may need in /dev/shm."""


@dataclass(frozen=True)
class Device:
    """A device as JAX reports it. `memory` is in bytes for programs, or None if unknown."""

    index: int
    kind: str
    arch: str
    memory: int | None


@dataclass(frozen=True)
class Card:
    """A GPU as its driver reports it, memory in bytes. The order may differ from JAX's.

    mec: firmware version of an AMD card's compute micro engine, or None if unknown.
    """

    total: int
    used: int
    mec: int | None = None


@dataclass(frozen=True)
class Node:
    """Facts about a machine. `memlock` (None: no limit) and free `shared_memory` are in bytes."""

    versions: dict[str, str]
    drivers: dict[str, str]
    system: str
    cores: int
    platform: str
    runtime: str
    devices: tuple[Device, ...]
    cards: tuple[Card, ...]
    memlock: int | None
    open_files: int
    shared_memory: int
    variables: dict[str, str]
    numa_balancing: str = ""

    @property
    def rocm(self) -> tuple[int, ...]:
        """Numbers of ROCm's version file, `7.2.0-43` -> (7, 2, 0); empty if unknown."""
        return tuple(map(int, re.findall("[0-9]+", self.release)))

    @property
    def release(self) -> str:
        """ROCm's version without its build."""
        return self.drivers.get("ROCm", "").partition("-")[0]

    @property
    def archs(self) -> set[str]:
        """Architectures of the devices."""
        return {device.arch for device in self.devices}

    @property
    def mec(self) -> list[int]:
        """Known firmware versions of the cards' compute micro engines."""
        return [card.mec for card in self.cards if card.mec is not None]


@dataclass(frozen=True)
class Look:
    """Job that collects the facts. JAX starts only in its process."""

    def __call__(self) -> Node:
        cards = tuple(_cards())  # Before JAX allocates memory.
        import jax

        memlock, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        return Node(
            versions={
                "python": platform.python_version(),
                **versions(PACKAGES),
                **plugin_versions(),
            },
            drivers=dict(_drivers()),
            system=f"{platform.system()} {platform.release()} {platform.machine()}",
            cores=os.cpu_count() or 1,
            platform=jax.default_backend(),
            runtime=" ".join(jax.devices()[0].client.platform_version.split()),
            devices=tuple(_devices()),
            cards=cards,
            memlock=None if memlock == resource.RLIM_INFINITY else memlock,
            open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            shared_memory=shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 0,
            variables={name: os.environ[name] for name in VARIABLES if name in os.environ},
            numa_balancing=_line("proc/sys/kernel/numa_balancing"),
        )


def node_findings(node: Node) -> Iterator[Finding]:
    """Yield the versions, then the devices, then limits that are too low."""
    installed = node.versions | node.drivers
    said = ", ".join(f"{name} {found}" for name, found in installed.items())
    yield Finding("ok", "versions", node.system, said)
    yield _devices_finding(node)
    for index, card in enumerate(node.cards):
        if card.used > BUSY * card.total:
            used, total = card.used / GIB, card.total / GIB
            yield Finding(
                *("note", "memory", f"card {index}", f"{used:.1f} of {total:.1f} GiB are in use"),
                "another program runs there: end it, or leave the card out",
            )
    if len({card.total for card in node.cards}) > 1:
        sizes = ", ".join(f"{card.total / GIB:.1f}" for card in node.cards)
        yield Finding("note", "memory", "cards", f"GiB of each differ: {sizes}", "the least counts")
    if node.platform != "cpu":
        yield from _limits(node)


def _devices_finding(node: Node) -> Finding:
    kinds = sorted({f"{device.kind} {device.arch}".strip() for device in node.devices})
    memories = [device.memory / GIB for device in node.devices if device.memory is not None]
    seen = f"{len(node.devices)} x {', '.join(kinds)}"
    if memories:
        seen += f", {min(memories):.0f} GiB each for programs"
    if len(kinds) > 1:
        advice = "a mesh needs devices of one kind: choose them with ..._VISIBLE_DEVICES"
        return Finding("WRONG", "devices", node.platform, seen, advice)
    if node.platform == "cpu":
        return Finding(
            *("note", "devices", "cpu", seen),
            "no GPU was found: kernels are interpreted, which rehearses the command",
        )
    return Finding("ok", "devices", node.platform, seen)


def _limits(node: Node) -> Iterator[Finding]:
    if node.memlock is not None:
        yield Finding(
            *("note", "limits", "memlock", f"{node.memlock >> 10} KiB"),
            "collectives may fail to pin memory: ulimit -l unlimited",
        )
    if node.shared_memory < LEAST_SHARED_MEMORY:
        yield Finding(
            *("note", "limits", "/dev/shm", f"{node.shared_memory >> 20} MiB are free"),
            "collectives may fail to start: give a container --shm-size 8g or --ipc host",
        )


def _drivers() -> Iterator[tuple[str, str]]:
    lines = ((name, _line(path)) for name, path in DRIVERS.items())
    return ((name, line) for name, line in lines if line)


def _line(path: str | Path) -> str:
    """Return the first line of a file below ROOT; empty if there is none."""
    try:
        return (ROOT / path).read_text(encoding="utf-8").partition("\n")[0].strip()
    except OSError:
        return ""


def _devices() -> Iterator[Device]:
    import jax

    for index, device in enumerate(jax.devices()):
        arch = str(getattr(device, "compute_capability", "")).split(":")[0]
        stats = device.memory_stats() or {}
        yield Device(index, device.device_kind, arch, stats.get("bytes_limit"))


def _cards() -> Iterator[Card]:
    for folder in sorted((ROOT / "sys/class/drm").glob("card*/device")):
        total, used = (_line(folder / f"mem_info_vram_{name}") for name in ("total", "used"))
        if total.isdigit() and used.isdigit():
            mec = _line(folder / "fw_version/mec_fw_version")
            yield Card(int(total), int(used), int(mec, 0) if mec else None)
    if shutil.which("nvidia-smi"):
        done = subprocess.run(_NVIDIA_SMI, capture_output=True, text=True, timeout=30, check=False)
        for line in done.stdout.splitlines():
            total, _, used = line.partition(",")
            if total.strip().isdigit() and used.strip().isdigit():
                yield Card(int(total) << 20, int(used) << 20)


_NVIDIA_SMI = (
    "nvidia-smi",
    "--query-gpu=memory.total,memory.used",
    "--format=csv,noheader,nounits",
)
