"""Drafts of every form serve the embedded target without changing an answer."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from oracle_files import ORACLES
from simulated_device import SimulatedRunner

from convert import load_draft, load_target
from convert.conversion.cli import main as convert_main
from eagle3_jax.models.target import Target
from serve.bench import cli
from serve.bench.cli import parse_bench_flags
from serve.bench.common.accept_length import OVERALL, AcceptCounts, AcceptRow
from serve.bench.common.drive import EIGHT_SLOTS
from serve.bench.common.held_out import held_out
from serve.bench.equality.ties import Difference
from serve.bench.studies import drafts
from serve.bench.studies.drafts import (
    DraftFiles,
    DraftResult,
    DraftsRecord,
    compare_drafts,
    form_of,
)
from serve.demo import demo_draft_dir, demo_target_dir
from serve.demo.corpus import CATEGORIES
from serve.pair.loading import load_pair

CLOSE = 0.8
"""A quantised draft's accept length over the trained one's, at least."""

OVERALL_ROW = AcceptRow(
    OVERALL, 2, 9, AcceptCounts(4, 8, 5, (3, 2)), 2.25, (0.75, 0.5), 1.0, (1, 1, 2), 0.9
)
SOUND = DraftResult("BF16", "grouped, bfloat16", 10**6, [OVERALL_ROW], 2, 2, 0, [])
TIE = Difference("BF16, prompt 1", 3, (5, 6), "score", 1e-6, 1.0)
ERROR = replace(TIE, cause=None, score_margin=0.5, router_margin=math.inf)


FORMS = {
    "BF16": "grouped, bfloat16",
    "FP8": "grouped, fp8_channel x fp8_token + bfloat16",
    "INT4": "grouped, int4_channel x none + bfloat16",
}


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> list[DraftFiles]:
    files = drafts.embedded_drafts(tmp_path_factory.mktemp("drafts"), lambda _: None)
    return [draft for draft in files if draft.name in FORMS]


@pytest.fixture(scope="module")
def record(embedded: list[DraftFiles], pytestconfig: pytest.Config) -> DraftsRecord:
    """Few prompts and short answers; on the simulated device but with --long."""
    pair = load_pair(demo_target_dir(), None)
    with pytest.MonkeyPatch.context() as patch:
        if not pytestconfig.getoption("long"):
            patch.setattr("simulated_device.VOCAB", pair.target.config.vocab_size)
            patch.setattr("eagle3_jax.engine.engine.Runner", SimulatedRunner)
            sizes = {**EIGHT_SLOTS, "enable_structured_outputs": False}
            patch.setattr(drafts, "EIGHT_SLOTS", sizes)
        prompts = held_out(pair.tokenizer, 1)
        return compare_drafts(pair, embedded, prompts, 2, max_tokens=32, say=lambda _: None)


def test_answers_are_those_of_plain_decoding(record: DraftsRecord) -> None:
    assert record.holds
    for draft in record.drafts:
        assert (draft.compared, draft.different) == (len(CATEGORIES), 0)


def test_a_quantised_draft_is_smaller_and_accepted_about_as_often(record: DraftsRecord) -> None:
    trained, *quantised = record.drafts
    assert trained.accept_length > 1.5
    for draft in quantised:
        assert draft.accept_length >= CLOSE * trained.accept_length
        assert draft.nbytes < 0.7 * trained.nbytes


def test_embedded_drafts_are_told_apart_by_their_weights(record: DraftsRecord) -> None:
    assert {draft.name: draft.form for draft in record.drafts} == FORMS


@pytest.fixture(scope="module")
def tiny_target() -> Target:
    return load_target(ORACLES / "kimi_bf16")


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("draft_mla_bf16", "latent, bfloat16"),
        ("draft_mha_fp8_ptpc", "grouped, fp8_channel x fp8_token + bfloat16 + float16"),
    ],
)
def test_a_converted_draft_has_the_form_of_the_published_one(
    name: str, form: str, tiny_target: Target, tmp_path: Path
) -> None:
    assert convert_main([str(ORACLES / name), str(tmp_path / name)]) == 0
    for directory in (ORACLES / name, tmp_path / name):
        assert form_of(load_draft(directory, tiny_target), directory) == form


def test_a_tie_is_no_difference() -> None:
    tied = replace(SOUND, identical=1, ties=1, differences=[TIE])
    wrong = replace(SOUND, identical=1, differences=[ERROR])
    assert (tied.different, wrong.different) == (0, 1)
    assert DraftsRecord(2, 2, [SOUND, tied]).holds
    assert not DraftsRecord(2, 2, [SOUND, tied, wrong]).holds


@pytest.mark.parametrize(("found", "status"), [(TIE, 0), (ERROR, 1)])
def test_the_command_prints_and_records_and_fails_on_a_difference(
    found: Difference,
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ties = int(found.cause is not None)
    result = DraftsRecord(2, 2, [replace(SOUND, identical=1, ties=ties, differences=[found])])
    asked = []

    def pretend(pair: object, files: list[DraftFiles], prompts: list, k: int) -> DraftsRecord:
        asked.append(([draft.name for draft in files], len(prompts), k))
        return result

    monkeypatch.setattr(drafts, "compare_drafts", pretend)
    mine, b, c = (tmp_path / name for name in ("a/mine", "b", "c"))
    for directory in (mine, b, c):
        directory.mkdir(parents=True)
    argv = ["drafts", "--num-speculative-tokens", "2", "--prompts", "1"]
    argv += ["--draft", str(mine), str(b), "--draft", str(c)]
    assert cli.main([*argv, "--json", str(tmp_path / "r.json")]) == status
    names, *sizes = asked[0]
    assert sizes == [len(CATEGORIES), 2]
    assert names[:3] == ["BF16", "FP8", "INT4"] and names[-3:] == ["mine", "b", "c"]
    out = capsys.readouterr().out
    assert "2.25" in out and "token 3 is 5 or 6" in out
    written = json.loads((tmp_path / "r.json").read_text())
    assert written["benchmark"] == "drafts" and written["drafts"][0]["ties"] == ties


def test_an_absent_latent_draft_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> Path:
        raise FileNotFoundError("draft_mla holds no model")

    monkeypatch.setattr(drafts, "demo_latent_draft_dir", absent)
    said: list[str] = []
    found = list(drafts.embedded_drafts(tmp_path, said.append))
    assert [draft.name for draft in found] == ["BF16", "FP8", "INT4"]
    assert found[0].directory == demo_draft_dir()
    assert said == ["no MLA draft: draft_mla holds no model"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--num-speculative-tokens", "0"], "--num-speculative-tokens must be"),
        (["--prompts", "0"], "--prompts must be"),
    ],
)
def test_sizes_out_of_range_are_one_line(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_bench_flags(["drafts", *argv])
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
