"""The command against a server, and its refusals."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_server import Served

from eagle3_tools.bench.cli import main
from eagle3_tools.bench.load.lengths import Workload
from eagle3_tools.bench.sweep import measure as sweep_module


class Letters:
    """A tokenizer of lower-case letters, which the fake server reads as one token each."""

    codec = SimpleNamespace(vocab_size=26)

    def encode(self, text: str, add_special: bool = False) -> list[int]:
        return [ord(char) - ord("a") for char in text]

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return "".join(chr(ord("a") + i) for i in ids)

    def apply_chat_template(self, messages: Sequence[dict[str, str]]) -> str:
        return f"user{messages[0]['content']}end"


@pytest.fixture(autouse=True)
def letters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_module, "load_tokenizer", lambda _: Letters())


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--url", "x", "--demo"], "--url is a running server"),
        (["--configurations", "k9"], "--configurations are plain"),
        (["model", "--configurations", "k3"], "need its draft"),
        (["--sharegpt", "f"], "--sharegpt belongs to --sampling sglang"),
        (["--request-rate", "0"], "--request-rate: must be a number above 0"),
        (["--lengths", "1024"], "--lengths: must be ISL/OSL"),
        (["--concurrency", "0"], "--concurrency: must be a whole number, 1 or more"),
        (["--sampling", "vllm", "--range-ratio", "1"], "must be in [0, 1)"),
    ],
)
def test_a_sweep_that_can_t_be_is_one_line_and_status_2(
    argv: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(["sweep", *argv, "--output", f"{tmp_path / 'made'}"])
    except SystemExit as left:
        status = left.code
    assert status == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "made").exists()


def sweep(served: Served, into: Path, *more: str) -> int:
    where = ["--url", f"{served.http.base_url}", "--tokenizer", f"{into}", "--label", "tiny"]
    load = ["--lengths", "40/12", "--concurrency", "1", "2", "--prompts-per-client", "2"]
    return main(["sweep", *where, *load, "--seeds", "0", "--output", f"{into}", *more])


def test_a_sweep_leaves_a_result_for_every_run(
    fake: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep(fake, tmp_path, "--gpus", "2") == 0
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == [f"tiny_isl40_osl12_conc{c}_seed0.json" for c in (1, 2)]
    result = json.loads((tmp_path / files[1]).read_text())
    ours = result["eagle3"]
    assert (result["completed"], ours["failed"], ours["answers_of_another_length"]) == (4, 0, 0)
    # The server counts prompts as the client does, and the answers are as long as asked.
    assert ours["server_input_tokens"] == result["total_input_tokens"]
    assert result["total_output_tokens"] == sum(result["output_lens"])
    # One of three drafts accepted in every round.
    assert (ours["accept_length"], ours["acceptance_per_position"]) == (2, [1, 0, 0])
    assert ours["output_tput_per_gpu"] == pytest.approx(result["output_throughput"] / 2)
    shown = capsys.readouterr().out
    assert "output_tput_per_gpu" in shown and "1.00 0.00 0.00" in shown


def test_failed_requests_are_counted_and_the_status_is_1(fake: Served, tmp_path: Path) -> None:
    # Some of the prompts do not fit the context of 256.
    load = ["--lengths", "225/40", "--concurrency", "2", "--prompts-per-client", "4"]
    assert sweep(fake, tmp_path, *load, "--warmups-per-client", "0") == 1
    (path,) = tmp_path.iterdir()
    result = json.loads(path.read_text())
    failed = result["eagle3"]["failed"]
    assert 0 < failed < 8 and result["completed"] == 8 - failed
    assert "context_length_exceeded" in result["eagle3"]["first_error"]


def test_ctrl_c_keeps_the_runs_that_ended(
    fake: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = sweep_module.make_prompts

    def interrupted(workload: Workload, tokenizer: Letters, count: int, seed: int) -> object:
        if count > 2:
            raise KeyboardInterrupt
        return make(workload, tokenizer, count, seed)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(sweep_module, "make_prompts", interrupted)
    assert sweep(fake, tmp_path) == 130
    assert [path.name for path in tmp_path.iterdir()] == ["tiny_isl40_osl12_conc1_seed0.json"]


def test_a_server_that_is_not_there_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", "--url", "http://127.0.0.1:9", "--output", f"{tmp_path}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
