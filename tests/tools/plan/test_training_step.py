"""A training step's programs: what devices exchange, and what the checks at full size print."""

import io
from collections import Counter
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from published_pairs import LAYERS, PUBLISHED, published, training_plan
from rich.console import Console

from eagle3_jax.training.distillation import CPU_BLOCK
from eagle3_tools.aot.collectives import Collective, collectives
from eagle3_tools.checks.pool import Failure
from eagle3_tools.plan.compile.report import ProgramReport
from eagle3_tools.plan.compile.training_programs import training_programs
from eagle3_tools.plan.compile.training_step import (
    DRAFTS,
    TARGETS,
    Job,
    collective_problems,
    held_bytes,
    print_steps,
    step_jobs,
    step_options,
)
from eagle3_tools.plan.from_config import draft_from_config, target_from_config
from eagle3_tools.plan.planner import AbstractPair, read_pair

OPTIONS = step_options(PUBLISHED, TARGETS[0], DRAFTS[0])
VOCAB, HIDDEN, LENGTH = 5120, 256, 384
SIZES = {
    **{"hidden_size": HIDDEN, "num_hidden_layers": 3, "vocab_size": VOCAB},
    **{"intermediate_size": 768, "moe_intermediate_size": 256, "n_routed_experts": 8},
    **{"num_experts_per_tok": 2, "num_attention_heads": 8, "num_key_value_heads": 8},
    **{"q_lora_rank": 64, "kv_lora_rank": 64, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16},
    **{"v_head_dim": 16, "head_dim": 32},
}
"""Of a pair that is compiled for eight CPU devices in seconds."""


def narrow(config: dict[str, Any]) -> dict[str, Any]:
    known = {name: size for name, size in SIZES.items() if name in config}
    return {name: value for name, value in config.items() if name != "quantization_config"} | known


def narrow_pair(draft: str, draft_vocab: int) -> AbstractPair:
    """The published pair in bfloat16 with these sizes."""
    config = published("kimi-k2.5", "config")
    text = narrow(config["text_config"])
    own = narrow(published(draft, "config")) | {"num_hidden_layers": 1}
    return AbstractPair(
        target_from_config({**config, "text_config": text}, jnp.bfloat16),
        draft_from_config(
            own | {"draft_vocab_size": draft_vocab}, jnp.bfloat16, num_target_layers=LAYERS
        ),
    )


@pytest.mark.parametrize(
    ("draft", "draft_vocab"),
    [(DRAFTS[0], VOCAB // 2), pytest.param(DRAFTS[1], VOCAB, marks=pytest.mark.long)],
)
def test_an_update_keeps_its_state_in_place_and_exchanges_no_logits(
    draft: str, draft_vocab: int
) -> None:
    """On eight devices the moments stay where they were. No collective is as wide as a vocabulary
    or larger than the states of a row, but for blocks of the columns of a reduced vocabulary."""
    options = replace(OPTIONS, unroll=2, pair=replace(OPTIONS.pair, max_model_len=LENGTH))
    pair = narrow_pair(draft, draft_vocab)
    program = training_programs(options, pair, "gfx950", jax.devices())["update"]
    update = jax.jit(program.function, donate_argnums=program.donate)
    compiled = update.lower(*program.shapes).compile()
    given, left = jax.tree.leaves(program.shapes[0]), jax.tree.leaves(compiled.output_shardings[0])
    for shape, sharding in zip(given, left, strict=True):
        assert shape.sharding.is_equivalent_to(sharding, len(shape.shape)), shape
    found = collectives(compiled.as_text() or "")
    wide = [one for one in found if {*one.shape} & {VOCAB, draft_vocab}]
    reduced = draft_vocab if draft_vocab < VOCAB else 0
    assert all(one.nbytes <= CPU_BLOCK * reduced * 4 for one in wide)
    states = [one for one in found if one not in wide]
    # The layer reads the embedding beside the state.
    assert states and max(one.nbytes for one in states) <= LENGTH * 2 * HIDDEN * 4


@pytest.mark.long
def test_programs_compiled_for_one_pair_hold_for_all_four() -> None:
    """A target's pass has the same shapes beside both drafts, an update beside both targets."""
    compiled = {job.part: Counter[str]() for job in step_jobs(PUBLISHED)}
    for target in TARGETS:
        for draft in DRAFTS:
            options = step_options(PUBLISHED, target, draft)
            pair = read_pair(options.pair)
            programs = training_programs(options, pair, "gfx950", jax.devices())
            for part, program in programs.items():
                shapes = str(jax.tree.leaves(program.shapes))
                compiled[part][f"{target if part == 'features' else draft}: {shapes}"] += 1
    assert [list(found.values()) for found in compiled.values()] == [[2, 2], [2, 2]]


SUM = Collective("all-reduce", "bf16", (1, 2048, 7168), 0)


def summed(width: int) -> Collective:
    """A sum over every token of a step."""
    return Collective("all-reduce", "bf16", (20480, width), 0)


def test_logits_a_third_sum_a_layer_and_sums_of_other_widths_are_said() -> None:
    sums, planned = [SUM] * (2 * 61 + 1), training_plan(DRAFTS[0])
    assert list(collective_problems(planned, "features", sums)) == []
    (said,) = collective_problems(planned, "features", [*sums, SUM])
    assert said == "124 sums of hidden states, 123 would do"
    logits = Collective("all-gather", "f32", (1, 256, 163840), 80)
    compared = Collective("all-reduce", "bf16", (4 * 256 * 7168,), 80)
    latents = Collective("all-reduce", "bf16", (20480 * 576,), 0)
    heads = [SUM, summed(7168), summed(14336), compared]
    assert list(collective_problems(planned, "update", heads)) == []
    of_latents = training_plan(DRAFTS[1])
    assert list(collective_problems(of_latents, "update", [*heads, summed(1536), latents])) == []
    others = (summed(1536), latents, summed(20480), replace(summed(14336), kind="all-gather"))
    for refused in (logits, *others):
        (said,) = collective_problems(planned, "update", [refused])
        assert said == f"{refused.kind} of {refused.dtype}{list(refused.shape)}"
    (said,) = collective_problems(planned, "features", [summed(14336)])
    assert said == "all-reduce of bf16[20480, 14336]"


def report(job: Job, **changes: Any) -> ProgramReport:
    found = ProgramReport(
        job=job,
        argument_bytes=70 << 30,
        planned={"arguments": 70 << 30, "temporaries": 4 << 30},
        figures={"shared": 0},
        temporary_bytes=2 << 30,
        donated_bytes=0,
        alias_bytes=0,
        launches=1111,
        collectives=Counter({SUM: 123}),
        telling=123,
        failures=(),
        seconds=99.0,
        peak_bytes=1 << 30,
    )
    return replace(found, **changes)


def test_the_tables_have_programs_and_pairs_and_say_what_failed() -> None:
    jobs = list(step_jobs(PUBLISHED))
    results = [report(job) for job in jobs]
    update = replace(
        results[2], argument_bytes=9 << 30, figures={"shared": 1 << 30}, temporary_bytes=3 << 30
    )
    assert held_bytes(results[0], update) == (70 + 9 - 1 + 3) << 30
    shown = io.StringIO()
    assert print_steps(Console(file=shown, width=200), jobs, [*results[:2], update, results[3]])
    text = shown.getvalue()
    assert "123 x all-reduce bf16[1, 2048, 7168], 29,360,128 B, each as the data say times" in text
    assert text.count("81.0") == 2 and text.count("142.0") == 2 and text.count("259.2") == 4
    for spoiled, said in (
        (report(jobs[3], failures=("a spill",)), "the update, kimi-k2.5-eagle3-mla: a spill"),
        (Failure("took longer than 9 s"), "the update, kimi-k2.5-eagle3-mla: took longer"),
        (report(jobs[3], argument_bytes=200 << 30), "B, more than 278,"),
    ):
        shown = io.StringIO()
        assert not print_steps(Console(file=shown, width=200), jobs, [*results[:3], spoiled])
        assert "FAILED the" in shown.getvalue() and said in shown.getvalue()
