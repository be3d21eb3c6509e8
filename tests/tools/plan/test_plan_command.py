"""eagle3-plan: what it prints, writes and refuses."""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from published_pairs import PUBLISHED

from eagle3_tools.plan.cli import main
from eagle3_tools.plan.data.gpus import GPUS, SOURCES
from serve.demo import demo_draft_dir, demo_target_dir

TINY = ["--model", str(demo_target_dir()), "--draft", str(demo_draft_dir())]
TINY += ["--isl", "256", "--osl", "256"]
REAL = ["--model", str(PUBLISHED / "kimi-k2.5-mxfp4.config.json")]
REAL += ["--draft", str(PUBLISHED / "kimi-k2.5-eagle3-mla.config.json")]


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line that says why."""
    try:
        status = main(argv)
    except SystemExit as left:
        status = left.code
    assert status == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("eagle3-plan: error: ") and err.count("\n") == 1
    return err


def test_the_plan_of_a_published_pair_is_printed_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same numbers on screen and in JSON, which holds every k; our own kernels by the model of
    their code beside the published ones."""
    file = tmp_path / "plan.json"
    assert main([*REAL, "-tp", "4", "--concurrency", "4", "64", "--json", str(file)]) == 0
    shown, plan = capsys.readouterr().out, json.loads(file.read_text())
    assert plan["memory"]["target"]["nbytes"] == 558_033_215_488
    assert "558,033,215,488 B in all" in shown
    least = {fit["gpu"]: fit["devices"] for fit in plan["fits"]}
    assert least == {"MI355X": 4, "MI325X": 4, "MI300X": 4, "H200": 8}
    kv = plan["memory"]["kv"]["bfloat16"]
    assert kv["token_bytes"] == 62 * 1152 and f"{kv['tokens']:,}" in shown
    loads: list[dict[str, Any]] = plan["loads"]
    assert [(one["limit"], one["concurrency"]) for one in loads] == [
        (limit, c) for limit in ("datasheet", "tuned") for c in (4, 64)
    ]
    for one in loads:
        rates = [k["tokens_per_s"] for k in one["rounds"]]
        assert len(rates) == 9 and rates.index(max(rates)) == one["best_k"]
        assert f"{one['plain_s'] * 1e3:.2f}" in shown
        assert f"{one['rounds'][3]['break_even']:.2f}" in shown
    assert {row["setup"][:6] for row in plan["published"]} == {"MI355X", "MI325X"}
    assert "82.7 tok/s/GPU" in shown and "TPOT 5.40 ms" in shown
    words = " ".join(shown.split())
    assert words.count("model of their code: model, not measured") == 1
    assert words.count("the best published ones") == 1


def test_a_plan_without_a_draft_has_no_rounds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.json"
    assert main([*TINY[:2], *TINY[4:], "--json", str(file), "--max-model-len", "768"]) == 0
    plan = json.loads(file.read_text())
    assert plan["memory"]["draft"] is None
    assert all(one["rounds"] == [] and one["best_k"] == 0 for one in plan["loads"])
    assert "draft ms" not in capsys.readouterr().out


def test_every_d_is_compared_on_both_gpus_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.json"
    argv = [*REAL, "-tp", "8", "-dcp", "4", "--isl", "65536", "--concurrency", "4", "64"]
    assert main([*argv, "--json", str(file)]) == 0
    shown, plan = capsys.readouterr().out, json.loads(file.read_text())
    found = {(one["gpu"], one["decode_context_parallel_size"]): one for one in plan["divided"]}
    assert list(found) == [(gpu, d) for gpu in ("MI355X", "MI325X") for d in (1, 2, 4, 8)]
    for gpu in ("MI355X", "MI325X"):
        assert f"8 x {gpu}: at a context of 66048, dividing it pays from " in shown
        rates = {d: found[gpu, d]["rounds"][1]["tokens_per_s"] for d in (1, 2, 4, 8)}
        assert f"│ 64 │ {' │ '.join(f'{rate:9.0f}' for rate in rates.values())} │" in shown
        for d in (1, 2, 4, 8):
            assert found[gpu, d]["tokens"] == d * found[gpu, 1]["tokens"]
            assert f"{found[gpu, d]['tokens']:,}" in shown
    kv = plan["memory"]["kv"]["bfloat16"]
    assert (kv["tokens"], kv["token_bytes"]) == (found["MI355X", 4]["tokens"], 62 * 1152 / 4)
    # Latents, and keys and values of 8 of 64 heads, of bfloat16.
    assert plan["memory"]["gathered_bytes"] == 16384 * (1152 + 8 * 2 * (128 + 128))
    assert "gathered and expanded at prefill" in shown


def test_kv_heads_are_said_to_divide_the_cache_already(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(PUBLISHED / "minimax-m2.5.config.json")
    assert main(["--model", model, "-tp", "4", "-dcp", "4", "--concurrency", "4"]) == 0
    shown = capsys.readouterr().out
    assert "KV heads already divide the cache among the GPUs" in shown
    assert "at prefill" not in shown and "D = 2" not in shown


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_plot_is_a_picture(
    suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / f"plan.{suffix}"
    assert main([*TINY, "--plot", str(file)]) == 0
    start = file.read_bytes()[:200]
    assert start.startswith(b"\x89PNG" if suffix == "png" else b"<?xml")


def test_a_plot_without_matplotlib_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = refused(capsys, *TINY, "--plot", str(tmp_path / "plan.png"))
    assert "pip install 'eagle3-jax[plot]'" in said


def test_compiling_without_the_compiler_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("eagle3_tools.aot.targets.AMD.is_installed", lambda: False)
    assert "pip install 'eagle3-jax[rocm]'" in refused(capsys, *REAL, "-tp", "4", "--compile")


def test_an_architecture_stands_for_its_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "--arch", "gfx942", "--concurrency", "4"]) == 0
    assert "1 x MI325X" in capsys.readouterr().out


def test_constants_name_every_gpu_and_every_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--constants"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in GPUS)
    assert all(source in shown for _, source in SOURCES)


def test_what_no_number_of_devices_can_hold_has_other_remedies(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = refused(capsys, *TINY, "--gpu-memory-utilization", "1e-5")
    assert "--kv-cache-dtype fp8 or a smaller --max-model-len would help" in said


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        ([], "--model CONFIG_OR_DIR is needed"),
        (["--model", "nowhere"], "nowhere does not exist; a directory or a hub id"),
        (["--model", str(PUBLISHED / "test_vectors.json")], "test_vectors.json: unknown target"),
        ([*TINY[:2], "--draft", *TINY[1:2]], "this is a target"),
        ([*TINY, "-tp", "3"], "3 does not divide"),
        ([*TINY, "-tp", "4", "--draft-tensor-parallel-size", "2"], "must be 1 or"),
        ([*TINY, "-tp", "2", "-dcp", "3"], "must divide --tensor-parallel-size 2; got 3"),
        ([*TINY, "-dcp", "0"], "must be a whole number, 1 or more; got 0"),
        ([*TINY, "--acceptance", "0.5,0.9"], "never rising"),
        ([*TINY, "--acceptance", "0.9"], "must have 3 probabilities"),
        ([*TINY, "--acceptance", "high"], "must look like 0.8,0.6,0.4; got high"),
        ([*TINY, "--concurrency", "0"], "--concurrency: must be a whole number, 1 or more; got 0"),
        ([*TINY, "--isl", "0"], "--isl: must be a whole number, 1 or more; got 0"),
        ([*TINY, "--max-model-len", "9999999"], "--max-model-len is at most the model's"),
        ([*TINY, "--max-model-len", "99"], "must hold --isl + --osl, 512 tokens; got 99"),
        ([*TINY, "--osl", "1024"], "--isl + --osl are 1280, more than the model's 1024 tokens"),
        ([*TINY, "--num-speculative-tokens", "9"], "--num-speculative-tokens: must be 0..8; got 9"),
        (
            [*TINY, "--gpu-memory-utilization", "1.5"],
            "must be above 0 and at most 1; got 1.5",
        ),
        ([*TINY, "--plot", "plan.pdf"], "--plot must end in .png or .svg; got plan.pdf"),
        ([*TINY, "--gpu", "MI999"], "invalid choice: 'MI999'"),
        ([*TINY, "--gpu", "MI300X", "--arch", "gfx942"], "not allowed with argument --gpu"),
        ([*TINY, "--gpu", "H200", "--compile"], "--compile is for AMD's GPUs"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_one_line(
    argv: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reason in refused(capsys, *argv)


MODULES = ("full_size_pairs", "prefill", "replicas", "tower", "training_step")


@pytest.mark.parametrize(
    ("module", "words"),
    [
        *((f"compile.{name}", ["nowhere"]) for name in MODULES),
        *((f"compile.{name}", ["nowhere", "--limit", "nan"]) for name in MODULES),
        *((f"compile.{name}", [".", "--limit", "0"]) for name in MODULES if name != "tower"),
        ("__main__", ["--jobs", "0"]),
        ("__main__", ["--limit", "inf"]),
        ("__main__", ["--batch", "no"]),
    ],
)
def test_modules_that_compile_report_bad_values_in_one_line(
    module: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        import_module(f"eagle3_tools.plan.{module}").main(words)
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.startswith("python -P -m eagle3_tools.plan")
    assert said.count("\n") == 1 and "error: " in said
