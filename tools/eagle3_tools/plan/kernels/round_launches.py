"""Launches of a round of Kimi-K2.5 on each device, as recorded cases and XLA's own products.

61 layers, one of them dense; the multi-head draft in FP8 by token and channel; three drafts, 8,704
slots of context. The kernels of a layer are those that `python -m eagle3_tools.plan --list` shows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Scheme = Literal["mxfp4", "int4"]
LAYERS, MOE_LAYERS, DRAFTS, HIDDEN, VOCAB = 61, 60, 3, 7168, 163840
BF16 = 2
_EXPERTS = {"mxfp4": "mxfp4_mxfp4", "int4": "int4_group"}
_SHARED_BYTES = {"mxfp4": 17 / 32, "int4": 2.0}
"""Bytes of a weight of the shared expert, which runs in the routed experts' launches."""
_ROUTED = {"mxfp4": " mxfp4", "int4": ""}
FUSIONS_A_LAYER = 2


@dataclass(frozen=True)
class Launches:
    """`times` calls of a recorded case, or of XLA's own operation that moves `nbytes` bytes.

    extra: bytes that a call moves in addition to those of the case.
    """

    part: str
    times: int
    case: str = ""
    nbytes: float = 0.0
    extra: float = 0.0


@dataclass(frozen=True)
class RoundOf:
    """A batch on a number of devices."""

    scheme: Scheme
    batch: int
    devices: int

    @property
    def rows(self) -> int:
        """Rows that are verified, and drafted from first."""
        return self.batch * (DRAFTS + 1)

    @property
    def sums(self) -> list[tuple[int, float]]:
        """(count, bytes) of the sums of hidden states over the devices."""
        row = BF16 * HIDDEN
        return [
            (2 * LAYERS + 1, self.rows * row),
            (3, self.rows * row),
            (3 * (DRAFTS - 1), self.batch * row),
        ]

    def launches(self) -> Iterator[Launches]:
        yield from self._target()
        yield from self._draft()

    def _target(self) -> Iterator[Launches]:
        tp, rows = f"tp{self.devices}", self.rows
        heads = 64 // self.devices
        long = f"q4_8.5k_page64{self._batch}_values"
        yield Launches("dense", LAYERS, f"joint_matmul kimi.q_a_proj@tp1 bf16 rows{rows}")
        yield Launches("small", LAYERS, f"cache_latents kimi.attention@tp1 rows{rows}")
        yield Launches("dense (XLA)", LAYERS, nbytes=BF16 * 1536 * heads * 192)
        yield Launches("small", LAYERS, f"absorb_query kimi.attention@{tp} rows{rows}")
        yield Launches("attention", LAYERS, f"mla_decode kimi.attention@{tp} {long}")
        yield Launches("dense (XLA)", LAYERS, nbytes=BF16 * heads * 128 * HIDDEN)
        yield Launches("small", LAYERS, f"add_norm kimi.experts@tp8 rows{rows}")
        yield Launches("dense (XLA)", MOE_LAYERS, nbytes=BF16 * HIDDEN * 384)
        yield Launches(
            "route", MOE_LAYERS, f"route kimi.experts@tp8 tokens{rows}{_ROUTED[self.scheme]}"
        )
        yield Launches(
            "experts",
            MOE_LAYERS,
            f"grouped_mlp kimi.experts@{tp} {_EXPERTS[self.scheme]} tokens{rows}",
            extra=_SHARED_BYTES[self.scheme] * 3 * HIDDEN * 2048 / self.devices,
        )
        each = 8 * rows * HIDDEN * BF16
        yield Launches("small (XLA)", FUSIONS_A_LAYER * LAYERS, nbytes=each / FUSIONS_A_LAYER)
        dense = _SHARED_BYTES[self.scheme] * 3 * HIDDEN * 18432 / self.devices
        yield Launches("dense (XLA)", 2, nbytes=dense / 2)
        yield Launches("head", 1, f"logits_argmax kimi.lm_head@{tp} bf16 rows{rows}")

    def _draft(self) -> Iterator[Launches]:
        yield Launches("draft (XLA)", 1, nbytes=BF16 * 3 * HIDDEN * HIDDEN)
        yield from self._pass(4, self.rows, 1)
        yield from self._pass(1, self.batch, DRAFTS - 1)
        head = f"logits_argmax kimi.lm_head@tp{self.devices} bf16 rows{self.batch}"
        yield Launches("draft head", DRAFTS, head)

    def _pass(self, q_len: int, rows: int, times: int) -> Iterator[Launches]:
        tp = f"tp{self.devices}"
        long = f"q{q_len}_8.5k_page64{self._batch}"
        yield Launches("draft", times, f"joint_matmul draft_mha.qkv_proj@{tp} ptpc rows{rows}")
        yield Launches("small", times, f"cache_heads draft_mha.attention@{tp} rows{rows}")
        yield Launches("draft attention", times, f"gqa_decode draft_mha.attention@{tp} {long}")
        yield Launches("draft", times, f"fp8_matmul draft_mha.o_proj@{tp} ptpc rows{rows}")
        yield Launches("draft", times, f"gated_matmul draft_mha.gate_up@{tp} ptpc rows{rows}")
        yield Launches("draft", times, f"fp8_matmul draft_mha.down@{tp} ptpc rows{rows}")
        yield Launches("small (XLA)", 3 * times, nbytes=4 * rows * HIDDEN * BF16)

    @property
    def _batch(self) -> str:
        return "" if self.batch == 16 else f"_b{self.batch}"
