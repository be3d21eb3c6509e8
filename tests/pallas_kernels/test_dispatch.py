import logging

import pytest

from pallas_kernels import gpu
from pallas_kernels.dispatch import Form, choose, prefer

IMPLEMENTATIONS: dict[str, Form] = {"xla": len, "reference": sum, "pallas": "head_dim is 3"}


def test_none_means_xla_on_cpu_and_a_name_means_itself():
    assert choose("f", None, **IMPLEMENTATIONS) is len
    assert choose("f", "reference", **IMPLEMENTATIONS) is sum


def test_a_gpu_runs_the_kernel_and_the_reference_where_the_kernel_refuses(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.INFO)
    with gpu.assume("gfx950"):
        assert choose("g", None, **(IMPLEMENTATIONS | {"pallas": max})) is max
        assert choose("h", None, **IMPLEMENTATIONS) is sum
        assert choose("h", None, **IMPLEMENTATIONS) is sum
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert said == [
        ("INFO", "g runs as pallas"),
        ("WARNING", "h runs as reference (pallas: head_dim is 3)"),
    ]


def test_what_is_preferred_holds_for_calls_that_name_nothing():
    with prefer("reference"):
        assert choose("f", None, **IMPLEMENTATIONS) is sum
        assert choose("f", "xla", **IMPLEMENTATIONS) is len
    assert choose("f", None, **IMPLEMENTATIONS) is len
    with prefer("pallas"), pytest.raises(ValueError, match="'pallas'"):
        choose("f", None, **IMPLEMENTATIONS)


def test_an_operation_that_is_switched_off_runs_as_its_reference_and_says_so_in_a_line(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.WARNING)
    with gpu.assume("gfx950"), prefer(None, ["off"]):
        assert choose("off", None, **(IMPLEMENTATIONS | {"pallas": max})) is sum
        assert choose("on", None, **(IMPLEMENTATIONS | {"pallas": max})) is max
    assert [record.getMessage() for record in caplog.records] == [
        "off runs as reference (pallas: switched off)"
    ]
    with prefer("pallas", ["off"]):
        assert choose("off", None, **(IMPLEMENTATIONS | {"pallas": max})) is sum
        with prefer(None, ["on"]):
            assert choose("off", None, **(IMPLEMENTATIONS | {"pallas": max})) is sum
    with prefer(None, ["off"]):
        assert choose("off", None, **IMPLEMENTATIONS) is len


def test_an_error_lists_why_each_implementation_refused():
    refused: dict[str, Form] = {"xla": "q is int8", "reference": sum, "pallas": "head_dim is 3"}
    with pytest.raises(
        ValueError, match="'pallas': xla: q is int8; pallas: head_dim is 3; available: reference"
    ):
        choose("f", "pallas", **refused)


def test_an_unknown_implementation_is_refused():
    with pytest.raises(ValueError, match="cuda: no such implementation"):
        choose("f", "cuda", **IMPLEMENTATIONS)
