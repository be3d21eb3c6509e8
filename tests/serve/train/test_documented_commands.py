"""A quantised target trains a draft by the commands of the guide.

tests/test_reference.py parses every documented command in `make test`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from convert import load_draft, load_target
from convert.quantize.cli import main as quantize
from eagle3_jax.layers.moe import MoE
from pallas_kernels import QuantizedArray
from serve.train.cli import main

ROOT = Path(__file__).parents[3]


def documented(name: str) -> Iterator[list[str]]:
    """The commands of the guide that write or read a directory of this name."""
    for line in (ROOT / "docs" / "guide" / "prepare.md").read_text().splitlines():
        if line.startswith("    eagle3-") and f"/tmp/{name}" in line:
            yield line.partition("#")[0].split()


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["int4", "mxfp4"])
def test_a_quantised_target_trains_a_draft_by_the_two_documented_commands(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pair is the embedded one."""
    monkeypatch.chdir(ROOT)
    run = {"eagle3-quantize": quantize, "eagle3-train": main}
    commands = list(documented(f"target-{scheme}"))
    assert [command[0] for command in commands] == list(run)
    for name, *given in commands:
        flags = [part.replace("/tmp", f"{tmp_path}", 1) for part in given]
        assert run[name](flags) == 0
    target = load_target(tmp_path / f"target-{scheme}")
    mlp = target.layers[-1].mlp
    assert isinstance(mlp, MoE)
    assert isinstance(mlp.experts.up_proj.get_value(), QuantizedArray)
    assert load_draft(tmp_path / f"draft-{scheme}", target).config.draft_vocab_size == 512
