"""Figures that others published of this pair, beside what the model says of their setup."""

from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp

from convert.from_config import draft_from_config, target_from_config
from convert.kimi_k25 import kimi_to_hf
from convert.published_config import draft_to_hf
from serve.plan.attention_work import Rows
from serve.plan.draft_work import draft_shape
from serve.plan.gpus import MI325X, MI355X, Gpu
from serve.plan.kernels import BOUNDS, Bound
from serve.plan.kimi_k25 import DRAFT, TARGET
from serve.plan.parallel import Parallelism
from serve.plan.rounds import Shapes
from serve.plan.target_work import target_shape


@dataclass(frozen=True)
class Figure:
    """One published figure as milliseconds of a step or round of all `concurrency` sequences.

    num_speculative_tokens: None is plain decoding. accept_length: published or assumed, 1 of plain
    decoding. said: how it was published.
    """

    concurrency: int
    num_speculative_tokens: int | None
    accept_length: float
    step_ms: float
    said: str


@dataclass(frozen=True)
class Setup:
    """Who measured what on which devices; context: mean tokens of KV while it decoded."""

    name: str
    source: str
    gpu: Gpu
    parallel: Parallelism
    target: dict[str, Any]
    draft: dict[str, Any]
    context: float
    figures: tuple[Figure, ...]

    def shapes(self) -> Shapes:
        """The pair on one of the devices. One layer with experts stands for all: they are alike."""
        two = replace(TARGET, num_hidden_layers=2)
        config = {**kimi_to_hf(two, "bfloat16"), "quantization_config": self.target}
        target = target_shape(target_from_config(config, jnp.bfloat16), self.parallel)
        (dense, _), (experts, _) = target.layers
        layers = (dense, 1), (experts, TARGET.num_hidden_layers - 1)
        fields = {**draft_to_hf(DRAFT, "bfloat16"), "quantization_config": self.draft}
        count = TARGET.num_hidden_layers
        draft = draft_from_config(fields, jnp.bfloat16, num_target_layers=count)
        own = draft_shape(draft, self.parallel)
        return Shapes(replace(target, layers=layers), own, self.gpu)


@dataclass(frozen=True)
class Compared:
    """A published figure, and milliseconds of the same under each limit."""

    setup: Setup
    figure: Figure
    limit_ms: dict[Bound, float]

    def ratio(self, bound: Bound) -> float:
        """Measured to limit: 1 is the limit itself."""
        return self.figure.step_ms / self.limit_ms[bound]

    @property
    def tokens_per_s(self) -> float:
        """A GPU."""
        figure, devices = self.figure, self.setup.parallel.devices
        return 1e3 * figure.accept_length * figure.concurrency / figure.step_ms / devices


def compare_published() -> list[Compared]:
    """Every published figure beside both limits."""
    return [found for setup in SETUPS for found in _compare(setup)]


def _compare(setup: Setup) -> list[Compared]:
    shapes, found = setup.shapes(), []
    for figure in setup.figures:
        rows = Rows(figure.concurrency, 1, setup.context, 2)
        limit_ms: dict[Bound, float] = {}
        for bound in BOUNDS:
            load, k = shapes.load(rows, bound), figure.num_speculative_tokens
            limit_ms[bound] = 1e3 * (load.plain_s if k is None else load.rounds[k].seconds)
        found.append(Compared(setup, figure, limit_ms))
    return found


def _quark(weight: Any, *exclude: str) -> dict[str, Any]:
    scheme = {"weight": weight, "input_tensors": {}}
    return {"quant_method": "quark", "global_quant_config": scheme, "exclude": list(exclude)}


_ATTENTION = ("re:.*self_attn.*", "re:.*lm_head.*")
_MXFP4 = _quark({"dtype": "fp4", "qscheme": "per_group"}, *_ATTENTION)
_W4A8 = _quark(
    [
        {"dtype": "fp8_e4m3", "qscheme": "per_tensor"},
        {"dtype": "int4", "qscheme": "per_channel"},
    ],
    *_ATTENTION,
    "re:.*shared_experts.*",
    r"re:.*mlp\.(gate|up|down)_proj.*",
)
_FP8_DRAFT = _quark({"dtype": "fp8_e4m3", "qscheme": "per_channel"}, "fc", "lm_head")


def _mi355x(concurrency: int, plain: float, drafted: float) -> tuple[Figure, Figure]:
    """From tokens a second and GPU, of 4. The card's accept length is not known: the golden one."""

    def figure(k: int | None, accept_length: float, rate: float) -> Figure:
        step_ms = 1e3 * accept_length * concurrency / (4 * rate)
        return Figure(concurrency, k, accept_length, step_ms, f"{rate} tok/s/GPU")

    return figure(None, 1.0, plain), figure(6, 3.62, drafted)


SETUPS = (
    Setup(
        "MI355X, TP 4, MXFP4, FP8 MHA draft on TP 1, 1K/1K",
        "model card amd/Kimi-K2.5-Eagle3-FP8 (vLLM 0.19), read 2026-11-20; k = 6, whose accept "
        "length the card does not give: 3.62 is assumed",
        MI355X,
        Parallelism(4, 1),
        _MXFP4,
        _FP8_DRAFT,
        1536,
        (
            *_mi355x(4, 82.7, 165.2),
            *_mi355x(8, 142.2, 270.1),
            *_mi355x(16, 220.5, 412.7),
            *_mi355x(32, 342.2, 633.8),
            *_mi355x(64, 533.3, 936.6),
        ),
    ),
    Setup(
        "MI325X, TP 8, W4A8, BF16 MHA draft, 10K/512",
        "AMD's blog on Kimi-K2.5-W4A8 with EAGLE3 (SGLang), read 2026-11-20; k = 3, time per token "
        "x its accept length 3.97 (3.93 at 40); at 40 less 14.75 ms a token of waiting for the "
        "prefill of others (TPOT 42.73 - median ITL 27.98)",
        MI325X,
        Parallelism(8, 8),
        _W4A8,
        {},
        10496,
        (
            Figure(2, None, 1.0, 16.94, "TPOT 16.94 ms"),
            Figure(2, 3, 3.97, 3.97 * 5.40, "TPOT 5.40 ms"),
            Figure(40, None, 1.0, 27.98, "TPOT 42.73 ms"),
            Figure(40, 3, 3.93, 3.93 * (27.79 - 14.75), "TPOT 27.79 ms"),
        ),
    ),
)
