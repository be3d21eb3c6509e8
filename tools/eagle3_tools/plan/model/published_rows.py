"""Published measurements of these pairs, compared with the model."""

from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp

from convert.models.config_json import draft_to_hf
from convert.models.targets import target_files
from eagle3_jax.config import DraftConfig, TargetConfig
from eagle3_tools.plan.data import kimi_k25, minimax_m25
from eagle3_tools.plan.data.gpus import MI325X, MI355X, Gpu
from eagle3_tools.plan.from_config import draft_from_config, target_from_config
from eagle3_tools.plan.model.attention_work import StepRows
from eagle3_tools.plan.model.draft_work import draft_shape
from eagle3_tools.plan.model.kernels import BOUNDS, Bound
from eagle3_tools.plan.model.parallel import Parallelism
from eagle3_tools.plan.model.rounds import Shapes
from eagle3_tools.plan.model.target_work import target_shape

BF16 = "bfloat16"


@dataclass(frozen=True)
class Figure:
    """One published figure as milliseconds of a step or round of all `concurrency` sequences.

    num_speculative_tokens: None for plain decoding. accept_length: published or assumed, 1 for
    plain decoding. said: the figure as published.
    """

    concurrency: int
    num_speculative_tokens: int | None
    accept_length: float
    step_ms: float
    said: str


@dataclass(frozen=True)
class Setup:
    """A published measurement: source, devices, models. context: mean KV tokens while decoding."""

    name: str
    source: str
    gpu: Gpu
    parallel: Parallelism
    target: TargetConfig
    draft: DraftConfig
    quantization: dict[str, Any]
    draft_quantization: dict[str, Any]
    context: float
    figures: tuple[Figure, ...]

    def shapes(self) -> Shapes:
        """Return the pair on one device. Two layers are built; later ones equal the second."""
        count = self.target.num_hidden_layers
        fields = target_files(self.target).to_hf(replace(self.target, num_hidden_layers=2), BF16)
        config = {**fields, "quantization_config": self.quantization}
        target = target_shape(target_from_config(config, jnp.bfloat16), self.parallel)
        *others, (last, times) = target.layers
        layers = (*others, (last, times + count - 2))
        fields = {**draft_to_hf(self.draft, BF16), "quantization_config": self.draft_quantization}
        draft = draft_from_config(fields, jnp.bfloat16, num_target_layers=count)
        own = draft_shape(draft, self.parallel)
        return Shapes(replace(target, layers=layers), own, self.gpu)


@dataclass(frozen=True)
class Compared:
    """A published figure, and the milliseconds of the same step under each limit."""

    setup: Setup
    figure: Figure
    limit_ms: dict[Bound, float]

    def ratio(self, bound: Bound) -> float:
        """Return the measured time divided by the limit; 1 is the limit itself."""
        return self.figure.step_ms / self.limit_ms[bound]

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second and GPU."""
        figure, devices = self.figure, self.setup.parallel.devices
        return 1e3 * figure.accept_length * figure.concurrency / figure.step_ms / devices


def compare_published(architecture: type[TargetConfig] = TargetConfig) -> list[Compared]:
    """Compare every published figure of targets of this architecture with both limits."""
    setups = (setup for setup in SETUPS if isinstance(setup.target, architecture))
    return [found for setup in setups for found in _compare(setup)]


def _compare(setup: Setup) -> list[Compared]:
    shapes, found = setup.shapes(), []
    for figure in setup.figures:
        rows = StepRows(figure.concurrency, 1, setup.context, 2)
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


def _mi355x(
    concurrency: int, plain: float, drafted: float, k: int = 6, accept_length: float = 3.62
) -> tuple[Figure, Figure]:
    """Convert tokens a second and GPU, of 4 GPUs. The accept length is not published: Kimi's golden
    one is assumed."""

    def figure(k: int | None, accept_length: float, rate: float) -> Figure:
        step_ms = 1e3 * accept_length * concurrency / (4 * rate)
        return Figure(concurrency, k, accept_length, step_ms, f"{rate} tok/s/GPU")

    return figure(None, 1.0, plain), figure(k, accept_length, drafted)


SETUPS = (
    Setup(
        "MI355X, TP 4, MXFP4, FP8 MHA draft on TP 1, 1K/1K",
        "model card amd/Kimi-K2.5-Eagle3-FP8 (vLLM 0.19), read 2026-11-20; k = 6, whose accept "
        "length the card does not give: 3.62 is assumed",
        MI355X,
        Parallelism(4, 1),
        kimi_k25.TARGET,
        kimi_k25.DRAFT,
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
        kimi_k25.TARGET,
        kimi_k25.DRAFT,
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
    Setup(
        "MI355X, TP 4 + EP, FP8 blocks, BF16 draft on TP 1, 1K/1K",
        "AMD's blog on EAGLE-3 and Quark (vLLM), read 2026-11-20: MiniMax-M2.5, k = 3; neither the "
        "draft nor its accept length is named: thoughtworks/MiniMax-M2.5-Eagle3 and 2.88 are "
        "assumed",
        MI355X,
        Parallelism(4, 1, True),
        minimax_m25.TARGET,
        minimax_m25.DRAFT,
        minimax_m25.FP8_BLOCKS,
        {},
        1536,
        (
            *_mi355x(4, 90.4, 161.7, 3, 2.88),
            *_mi355x(8, 162.6, 277.9, 3, 2.88),
            *_mi355x(16, 282.7, 436.9, 3, 2.88),
            *_mi355x(32, 484.8, 759.0, 3, 2.88),
            *_mi355x(64, 822.0, 1137.3, 3, 2.88),
        ),
    ),
)
