"""Quantised pairs through the engine write the greedy text of the goldens."""

import pytest
from oracle_files import ORACLES, golden_json
from sweeps import sweep
from tolerances import CLEAR_MARGIN

from convert import load_draft, load_target
from eagle3_jax import SamplingParams, generate

PAIRS = {
    "kimi_int4_ct": "draft_mha_fp8_ptpc",
    "kimi_mxfp4_quark": "draft_mha_int4_pc",
    "kimi_w4a8_quark": "draft_mla_bf16",
}


@pytest.mark.parametrize("form", sweep(PAIRS, ["kimi_w4a8_quark"]))
def test_speculative_output_is_the_golden_continuation(form: str) -> None:
    golden = golden_json(f"{form}_deq_f32")["prompts"]
    assert min(entry["min_margin"] for entry in golden) > CLEAR_MARGIN
    target = load_target(ORACLES / form, quantize_activations=False)
    draft = load_draft(ORACLES / PAIRS[form], target)
    greedy = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    prompts = [entry["prompt"] for entry in golden]
    answers = generate(target, draft, prompts, greedy, num_speculative_tokens=3)
    assert [answer.token_ids for answer in answers] == [entry["greedy"] for entry in golden]
    assert any(sum(answer.accepted) for answer in answers)
