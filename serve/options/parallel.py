"""Flags of tensor, expert, data and decode context parallelism."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

DATA_FLAG, DATA_ALIASES = "--data-parallel-size", ("-dp", "--dp", "--dp-size")
ONE_OF_EACH = {
    "--pipeline-parallel-size": ("-pp", "--pp", "--pp-size"),
    "--prefill-context-parallel-size": ("-pcp",),
}
"""Known flags that must be 1."""
ONE_SERVER_EACH = (
    "run one server for each replica and a router before them, or set --tensor-parallel-size"
)


@dataclass(frozen=True)
class ParallelOptions:
    """Numbers of devices for target and draft; the draft's is 1 or the target's.

    `enable_expert_parallel` splits by whole experts. `data_parallel_size` counts replicas of all
    but the experts. `kv_cache_interleave_size`: see `add_interleave_flag`.
    """

    tensor_parallel_size: int = 1
    enable_expert_parallel: bool = False
    draft_tensor_parallel_size: int = 1
    kv_cache_interleave_size: int | None = None
    data_parallel_size: int = 1

    @property
    def devices(self) -> int:
        """Number of devices of all replicas."""
        return self.tensor_parallel_size * self.data_parallel_size

    @property
    def splits_draft(self) -> bool:
        """True if devices hold parts of the draft."""
        return self.draft_tensor_parallel_size > 1


ONE_DEVICE = ParallelOptions()


def add_parallel_flags(parser: argparse.ArgumentParser, *, data: bool = False) -> None:
    """Add the flags as a group; `data` if the command may run replicas."""
    group = parser.add_argument_group("several devices")
    group.add_argument(
        "--tensor-parallel-size",
        "-tp",
        "--tp",
        "--tp-size",
        type=int,
        default=1,
        metavar="N",
        help="devices that share the weights",
    )
    group.add_argument(
        "--enable-expert-parallel",
        action="store_true",
        help="each holds whole experts, not a part of every one",
    )
    group.add_argument(
        "--expert-parallel-size", "--ep", "--ep-size", type=int, help=argparse.SUPPRESS
    )
    group.add_argument(
        "--decode-context-parallel-size",
        "-dcp",
        type=int,
        default=1,
        metavar="N",
        help="of these, neighbours that divide a context which all of them need (of latents, or of "
        "a KV head that they share): N times as many tokens fit",
    )
    add_interleave_flag(group)
    if data:
        group.add_argument(
            DATA_FLAG,
            *DATA_ALIASES,
            type=partial(_positive, "of replicas"),
            default=1,
            metavar="N",
            help="replicas of as many devices, each with requests and KV cache of its own; whole "
            "experts lie over all of them (--enable-expert-parallel)",
        )
    else:
        add_no_replicas(parser, "eagle3-serve and eagle3-generate run replicas")
    for name, aliases in ONE_OF_EACH.items():
        parser.add_argument(name, *aliases, type=_one, default=1, help=argparse.SUPPRESS)


def add_no_replicas(parser: Any, instead: str) -> None:
    """Add a flag of replicas that accepts only 1, and otherwise suggests `instead`."""
    refused = partial(_one, instead=instead)
    parser.add_argument(DATA_FLAG, *DATA_ALIASES, type=refused, default=1, help=argparse.SUPPRESS)


def add_interleave_flag(group: Any) -> None:
    """Add the flag for consecutive tokens of a divided context, under vLLM's names."""
    group.add_argument(
        "--dcp-kv-cache-interleave-size",
        "--cp-kv-cache-interleave-size",
        dest="kv_cache_interleave_size",
        type=partial(_positive, "of tokens"),
        metavar="N",
        help="tokens of such a context that a device keeps in a row: always --block-size, a line "
        "says so where N is another number",
    )


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
    """Read the group; ValueError, naming the flag, for unsupported sizes.

    `draft_tensor_parallel_size` is the speculative config's, None for the target's.
    """
    size, experts = flags.tensor_parallel_size, flags.expert_parallel_size
    replicas = flags.data_parallel_size
    if size < 1:
        raise ValueError(f"--tensor-parallel-size must be at least 1; got {size}")
    if (contexts := flags.decode_context_parallel_size) < 1 or size % contexts:
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


def _positive(what: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number {what}, 1 or more; got {text}")
    return int(text)


def _one(text: str, instead: str = ONE_SERVER_EACH) -> int:
    if text != "1":
        raise argparse.ArgumentTypeError(f"must be 1: {instead}; got {text}")
    return 1
