"""Flags of the fraction of GPU memory to use: vLLM's and SGLang's, which count differently."""

import argparse
import math
from collections.abc import MutableMapping
from dataclasses import dataclass

GIB = 2**30
VARIABLES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
"""Fraction that JAX's allocator takes, 0.75 if neither is set; the second is the older name."""
FOR_PROGRAMS = 0.1
MOST = 0.98


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


def add_memory_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags as a group."""
    group = parser.add_argument_group("memory")
    group.add_argument(
        "--gpu-memory-utilization",
        type=float,
        metavar="F",
        help="share of a GPU's memory, 0..1; the KV cache fills what weights and programs leave",
    )
    group.add_argument(
        "--mem-fraction-static",
        type=float,
        metavar="F",
        help="SGLang's: the share without what programs need, which comes on top",
    )
    group.add_argument(
        "--kv-offloading-size",
        type=_gibibytes,
        dest="kv_offloading_bytes",
        metavar="GIB",
        help="host memory, over all devices, for pages that the KV cache has no room for",
    )
    group.add_argument(
        "--kv-offloading-backend",
        choices=("native",),
        default="native",
        help="who keeps them; others than this engine itself are not built",
    )
    group.add_argument(
        "--kv-offloading-min-tokens",
        type=int,
        dest="kv_offloading_least_tokens",
        metavar="N",
        help="fewer than these are prefilled again, not loaded; default 1, any page; eagle3-plan "
        "recommends one for slow links",
    )
    group.add_argument(
        "--kv-offloading-dir",
        metavar="DIR",
        help="keeps what comes to that memory, so that it survives a restart",
    )
    group.add_argument(
        "--kv-offloading-dir-size",
        type=_gibibytes,
        dest="kv_offloading_dir_bytes",
        metavar="GIB",
        help="how much of it; the longest unused pages go",
    )


def _gibibytes(text: str) -> int:
    size = float(text)
    if not 0 < size < math.inf:
        raise argparse.ArgumentTypeError(f"must be above 0, in GiB; got {text}")
    return int(size * GIB)


def read_memory_share(
    flags: argparse.Namespace, *, several_hosts: bool = False
) -> MemoryShare | None:
    """Read the fraction; ValueError, naming the flag, for a bad one or several cache sizes."""
    if several_hosts and flags.kv_offloading_dir:
        raise ValueError("--kv-offloading-dir: several processes as one engine keep none on disk")
    names = ("gpu_memory_utilization", "mem_fraction_static", "num_pages")
    given = {name: value for name in names if (value := getattr(flags, name)) is not None}
    others = {"num_pages": "--num-gpu-blocks-override"}
    texts = [others.get(name, f"--{name.replace('_', '-')}") for name in given]
    if len(given) > 1:
        raise ValueError(f"each of them sizes the KV cache, give one: {', '.join(texts)}")
    if not given or names[2] in given:
        return None
    ((name, share),) = given.items()
    if several_hosts:
        raise ValueError(f"{texts[0]}: several hosts must agree, set --num-gpu-blocks-override")
    if not 0 < share <= 1:
        raise ValueError(f"{texts[0]} must be in (0, 1]; got {share}")
    return MemoryShare(share, programs_on_top=name == names[1])
