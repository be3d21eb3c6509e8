"""Flags and environment variables of vLLM and SGLang that have no effect in this engine."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

WITH_VALUE = (
    "--all2all-backend",
    "--attention-backend",
    "--compilation-config",
    "--cuda-graph-max-bs",
    "--decode-log-interval",
    "--device",
    "--distributed-executor-backend",
    "--limit-mm-per-prompt",
    "--load-format",
    "--max-prefill-tokens",
    "--max-seq-len-to-capture",
    "--mm-attention-backend",
    "--mm-encoder-tp-mode",
    "--num-continuous-decode-steps",
    "--numa-node",
    "--quantization",
    "--schedule-conservativeness",
    "--schedule-policy",
    "--stream-interval",
    "--swap-space",
    "--tokenizer-mode",
)
SWITCHES = (
    "--async-scheduling",
    "--no-async-scheduling",
    "--disable-cuda-graph",
    "--disable-custom-all-reduce",
    "--disable-log-requests",
    "--disable-log-stats",
    "--disable-overlap-schedule",
    "--enable-aiter-allreduce-fusion",
    "--enable-chunked-prefill",
    "--no-enable-chunked-prefill",
    "--enable-metrics",
    "--enable-mixed-chunk",
    "--enable-server-load-tracking",
    "--enable-tokenizer-info-endpoint",
    "--enable-torch-compile",
    "--enforce-eager",
    "--no-enable-log-requests",
    "--language-model-only",
    "--skip-server-warmup",
    "--trust-remote-code",
)
REASONS = {
    "--language-model-only": "there is no vision encoder yet",
    "--speculative-config kv_cache_dtype": "target and draft share pages of one dtype",
    "--speculative-config max_model_len": "the draft goes as far as the target",
    "--speculative-config quantization": "the draft's tensors say how they are quantised",
    "--quantization": "the checkpoint's tensors say how they are quantised",
    "--trust-remote-code": "tokenizer and chat template are read as data, no code is run",
}
ONLY_VALUE = {"--dtype": "auto"}
"""Known, with the one value that this engine has."""
VARIABLES = ("VLLM_ROCM_", "SGLANG_USE_AITER", "AITER_")
"""What the names of variables begin with that choose kernels of other engines."""


class _Notice(argparse.Action):
    """A flag that changes nothing: accepted, and listed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, help=argparse.SUPPRESS, default=argparse.SUPPRESS, **kwargs)

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: Any = None
    ) -> None:
        if option not in namespace.without_effect:
            namespace.without_effect = [*namespace.without_effect, option]


def add_other_flags(parser: argparse.ArgumentParser) -> None:
    """Adds them; those that were given are in the namespace's `without_effect`, each once."""
    parser.set_defaults(without_effect=[])
    for name in WITH_VALUE:
        parser.add_argument(name, action=_Notice, nargs=1)
    for name in SWITCHES:
        parser.add_argument(name, action=_Notice, nargs=0)
    for name, value in ONLY_VALUE.items():
        parser.add_argument(name, choices=(value,), help=argparse.SUPPRESS)


def say_without_effect(flags: Sequence[str], environment: Mapping[str, str]) -> Iterator[str]:
    """A line for each flag, and one for all variables."""
    for flag in flags:
        reason = REASONS.get(flag)
        yield f"{flag} has no effect in this engine" + (f": {reason}" if reason else "")
    found = sorted(name for name in environment if name.startswith(VARIABLES))
    if found:
        yield f"not read, they choose kernels of other engines: {', '.join(found)}"
