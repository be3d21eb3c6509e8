"""Options of tensor, expert, data and decode context parallelism."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from convert.command_line.options import COUNT, Parse, add_options, option

DATA_FLAG = "--data-parallel-size"
ONE_SERVER_EACH = (
    "run one server for each replica and a router before them, or set --tensor-parallel-size"
)


def _one(instead: str) -> Parse:
    """Return a parser that accepts only 1, and otherwise suggests `instead`."""

    def parse(text: str) -> int:
        if text != "1":
            raise argparse.ArgumentTypeError(f"must be 1: {instead}; got {text}")
        return 1

    return parse


@dataclass(frozen=True)
class ParallelOptions:
    """Numbers of devices for target and draft; the draft's is 1 or the target's.

    `data_parallel_size` counts replicas of all but the experts.
    """

    tensor_parallel_size: int = option(
        "--tensor-parallel-size, -tp, --tp, --tp-size N",
        "devices that divide the weights",
        COUNT,
        default=1,
    )
    enable_expert_parallel: bool = option(
        "--enable-expert-parallel", "give each device whole experts instead of a part of each"
    )
    draft_tensor_parallel_size: int = 1
    kv_cache_interleave_size: int | None = option(
        "--dcp-kv-cache-interleave-size, --cp-kv-cache-interleave-size N",
        "consecutive tokens of a divided context on a device: always --block-size, and the command "
        "says so if N differs",
        COUNT,
    )
    data_parallel_size: int = option(
        f"{DATA_FLAG}, -dp, --dp, --dp-size N",
        "replicas of as many devices, each with its own requests and KV cache; whole experts lie "
        "over all of them (--enable-expert-parallel)",
        COUNT,
        default=1,
    )

    @property
    def devices(self) -> int:
        """Number of devices of all replicas."""
        return self.tensor_parallel_size * self.data_parallel_size

    @property
    def splits_draft(self) -> bool:
        """True if devices hold parts of the draft."""
        return self.draft_tensor_parallel_size > 1


@dataclass(frozen=True)
class ContextFlags:
    """More options of several devices; the first is EngineConfig's."""

    decode_context_parallel_size: int = option(
        "--decode-context-parallel-size, -dcp N",
        "neighbouring devices that divide a context in place of copies of it (MLA latents, or a "
        "shared KV head): N times as many tokens fit",
        COUNT,
        default=1,
    )
    expert_parallel_size: int | None = option(
        "--expert-parallel-size, --ep, --ep-size N", None, int
    )
    pipeline_parallel_size: int = option(
        "--pipeline-parallel-size, -pp, --pp, --pp-size N", None, _one(ONE_SERVER_EACH), default=1
    )
    prefill_context_parallel_size: int = option(
        "--prefill-context-parallel-size, -pcp N", None, _one(ONE_SERVER_EACH), default=1
    )


@dataclass(frozen=True)
class NoReplicas:
    """The option of replicas for commands that have none."""

    data_parallel_size: int = option(
        f"{DATA_FLAG}, -dp, --dp, --dp-size N",
        None,
        _one("eagle3-serve and eagle3-generate run replicas; eagle3-plan says their effect"),
        default=1,
    )


ONE_DEVICE = ParallelOptions()


def add_parallel_flags(parser: argparse.ArgumentParser, *, data: bool = False) -> None:
    """Add the options as a group; `data` if the command may run replicas."""
    group = parser.add_argument_group("several devices")
    sizes = ["tensor_parallel_size", "enable_expert_parallel", "kv_cache_interleave_size"]
    add_options(group, ParallelOptions, *sizes, *(["data_parallel_size"] if data else []))
    add_options(group, ContextFlags)
    if not data:
        add_options(group, NoReplicas)


def notify_of_interleaving(
    size: int | None, parts: int, page_size: int, notify: Callable[[str], None]
) -> None:
    """Report a `size` that is not this engine's: `page_size` tokens on each of `parts` devices."""
    if parts > 1 and size not in (None, page_size):
        notify(
            f"--dcp-kv-cache-interleave-size {size}: here each of {parts} devices keeps "
            f"{page_size} tokens of a page in a row, --block-size, which changes no answer"
        )


def read_parallel_options(
    flags: argparse.Namespace, draft_tensor_parallel_size: Any = None
) -> ParallelOptions:
    """Read the tables; ValueError, naming the flag, for unsupported sizes.

    `draft_tensor_parallel_size` is the speculative config's, None for the target's.
    """
    size, experts = flags.tensor_parallel_size, flags.expert_parallel_size
    replicas = flags.data_parallel_size
    if size % (contexts := flags.decode_context_parallel_size):
        raise ValueError(
            f"--decode-context-parallel-size must divide --tensor-parallel-size {size}; "
            f"got {contexts}"
        )
    if experts not in (None, 1, size * replicas):
        raise ValueError(
            "--expert-parallel-size must be 1 or the number of devices, experts lie on all of "
            f"them: {size * replicas}; got {experts}"
        )
    draft = size if draft_tensor_parallel_size is None else draft_tensor_parallel_size
    if type(draft) is not int or draft not in (1, size):
        raise ValueError(
            f"draft_tensor_parallel_size must be 1 or --tensor-parallel-size: {size}; got {draft!r}"
        )
    by_expert = flags.enable_expert_parallel or (experts is not None and experts > 1)
    if replicas > 1 and not by_expert:
        raise ValueError(
            f"{DATA_FLAG} {replicas} needs --enable-expert-parallel: replicas share whole experts "
            "and nothing else; for servers that share nothing, start one for each and a router"
        )
    return ParallelOptions(size, by_expert, draft, flags.kv_cache_interleave_size, replicas)
