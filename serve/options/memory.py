"""Options of memory: the fraction of the GPUs' to use, and pages below the GPUs' memory."""

import argparse
from collections.abc import MutableMapping
from dataclasses import dataclass

from convert.command_line.options import SHARE, flags_of, option

GIB = 2**30
VARIABLES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
"""Fraction that JAX's allocator takes, 0.75 if neither is set; the second is the older name."""
FOR_PROGRAMS = 0.1
MOST = 0.98


@dataclass(frozen=True)
class ShareFlags:
    """The fraction of a GPU's memory: vLLM's option and SGLang's, which count differently."""

    gpu_memory_utilization: float | None = option(
        "--gpu-memory-utilization F",
        "share of a GPU's memory, 0..1; the KV cache fills what weights and programs leave",
        SHARE,
    )
    mem_fraction_static: float | None = option(
        "--mem-fraction-static F",
        "SGLang's share of a GPU's memory, to which the memory of programs is added",
        SHARE,
    )


@dataclass(frozen=True)
class OffloadingFlags:
    """Options of pages below the GPUs' memory; those of EngineConfig have its names."""

    kv_offloading_bytes: int | None = option(
        "--kv-offloading-size GIB",
        "host memory, over all devices, for pages that the KV cache has no room for",
        unit=GIB,
    )
    kv_offloading_backend: str = option(
        "--kv-offloading-backend",
        "the store of these pages; only this engine's own is built",
        default="native",
        choices=("native",),
    )
    kv_offloading_least_tokens: int | None = option(
        "--kv-offloading-min-tokens N",
        "prefill fewer cached tokens than these again instead of loading them; default 1, any "
        "page; eagle3-plan recommends a number for slow links",
        int,
    )
    kv_offloading_dir: str | None = option(
        "--kv-offloading-dir DIR",
        "directory that stores these pages too, so that they survive a restart",
    )
    kv_offloading_dir_bytes: int | None = option(
        "--kv-offloading-dir-size GIB",
        "size of --kv-offloading-dir; the least recently used pages are deleted",
        unit=GIB,
    )


@dataclass(frozen=True)
class MemoryShare:
    """A fraction of each device's memory for weights, requests and KV cache.

    It includes the memory of programs, unless that comes on top (`programs_on_top`).
    """

    share: float
    programs_on_top: bool = False

    def claim(self, environment: MutableMapping[str, str]) -> float:
        """Return the allocator's fraction; set it in the environment, before JAX has devices."""
        for name in VARIABLES:
            if name in environment:
                return float(environment[name])
        wanted = self.share + FOR_PROGRAMS if self.programs_on_top else self.share
        environment[VARIABLES[0]] = f"{min(wanted, MOST):.4g}"
        return float(environment[VARIABLES[0]])


def read_memory_share(
    flags: argparse.Namespace, *, several_hosts: bool = False
) -> MemoryShare | None:
    """Read the fraction; ValueError, naming the flags, for several sizes of the cache."""
    if several_hosts and flags.kv_offloading_dir:
        raise ValueError("--kv-offloading-dir needs an engine of one process: leave it out")
    names = flags_of(ShareFlags) | {"num_pages": "--num-gpu-blocks-override"}
    given = [name for name in names if getattr(flags, name) is not None]
    if len(given) > 1:
        listed = ", ".join(names[name] for name in given)
        raise ValueError(f"each of these sizes the KV cache, give one: {listed}")
    if given in ([], ["num_pages"]):
        return None
    (name,) = given
    if several_hosts:
        raise ValueError(f"{names[name]}: several hosts must agree, set --num-gpu-blocks-override")
    return MemoryShare(getattr(flags, name), programs_on_top=name == "mem_fraction_static")
