"""The conversion benchmark in small: bounded memory, killed and resumed, the arrays those made."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from processes import Forked

from convert.conversion.cli import main
from convert.files.safetensors_files import open_checkpoint
from convert.store.reader import open_store
from serve.bench.common.synthetic_int4 import WIDTHS, write_synthetic
from serve.bench.studies import convert
from serve.bench.studies.convert import ConvertRecord, measure_conversion

MIB = 2**20
SMALL = replace(
    WIDTHS,
    vocab_size=512,
    hidden_size=256,
    intermediate_size=128,
    moe_intermediate_size=128,
    num_attention_heads=2,
    n_routed_experts=16,
    q_lora_rank=32,
    kv_lora_rank=32,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    v_head_dim=16,
)


def converting(source: Path, destination: Path, flags: Sequence[str]) -> Forked:
    return Forked("convert.conversion.cli", [str(source), str(destination), *flags])


def test_a_killed_conversion_ends_as_an_undisturbed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert, "KILL_AT", (0.2,))
    monkeypatch.setattr(convert, "_converting", converting)
    said: list[str] = []
    record = measure_conversion(tmp_path, 8 * MIB, 1, said.append, widths=SMALL, item_bytes=MIB)
    assert record.resumed_equal and record.sound
    (killed_at,) = record.killed_at
    assert 0 < killed_at < record.items
    assert record.peak_mib[0] <= record.largest_item_mib + 1024
    assert not list(tmp_path.iterdir())


def test_the_synthetic_checkpoint_is_of_the_released_form(tmp_path: Path) -> None:
    written = write_synthetic(tmp_path / "source", 4 * MIB, SMALL)
    assert abs(written - 4 * MIB) < MIB
    assert main([str(tmp_path / "source"), str(tmp_path / "made")]) == 0
    store, source = open_store(tmp_path / "made"), open_checkpoint(tmp_path / "source")
    name = "language_model.model.layers.2.mlp.experts.7.up_proj.weight_packed"
    values = store.read("layers.2.mlp.experts.up_proj.values")
    offset_binary = source.read(name).view(np.uint8)
    np.testing.assert_array_equal(values[7], offset_binary ^ 0x88)
    assert len(np.unique(offset_binary)) == 256


def test_a_record_holds_only_if_every_claim_does() -> None:
    good = ConvertRecord(
        source_mib=4096,
        items=20,
        largest_item_mib=240,
        copy_mib_s=[100, 300],
        convert_mib_s=[100, 100],
        peak_mib=[800, 900],
        killed_at=[1, 2, 3],
        resumed_equal=True,
        sound=True,
    )
    # 1/100 + 1/300 over 2/100: times are added, not rates.
    assert good.ratio == pytest.approx(2 / 3) and good.holds
    assert not replace(good, peak_mib=[800, 1300]).holds
    assert not replace(good, convert_mib_s=[60, 60]).holds
    assert not replace(good, resumed_equal=False).holds
    assert not replace(good, sound=False).holds
