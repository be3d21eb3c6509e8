"""`make peer-kernels`: what is compared, without the compiler of peers."""

from pathlib import Path

import pytest
from rich.console import Console

pytest.importorskip("tinygrad")
from eagle3_tools.kernel_model.gpus import MI355X
from eagle3_tools.kernel_model.record import recorded
from eagle3_tools.peer_kernels.__main__ import main, ours
from eagle3_tools.peer_kernels.compile import BF16, FP8


def test_a_product_of_ours_is_compared_without_the_launch_that_quantises_its_rows() -> None:
    case = "kimi.o_proj@tp4 ptpc rows64"
    quantise, product = recorded("gfx950")[f"fp8_matmul {case}"].predictions(MI355X)
    assert ours()[case] == pytest.approx(product.seconds + MI355X.graph_gap)
    assert quantise.seconds > 0


def test_every_shape_of_a_peer_is_one_of_ours() -> None:
    for label, shapes in (("bf16", BF16), ("ptpc", FP8)):
        for case in shapes:
            assert f"{case} {label} rows64" in ours()


def test_a_folder_without_kernels_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="make peer-kernels"):
        main(tmp_path, Console())
