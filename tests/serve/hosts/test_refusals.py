"""Several processes refuse what they cannot run before anything is loaded."""

from types import SimpleNamespace
from typing import Any

import jax
import pytest
from flax import nnx

from convert.save import host_reader
from eagle3_jax.engine.programs.executor import Executor
from serve.hosts.facts import facts
from serve.hosts.runtime import check_devices
from serve.options.hosts import HostOptions

HOSTS = HostOptions(("127.0.0.1", 1), 2, 2, 0)


@pytest.mark.parametrize(
    ("found", "size", "said"),
    [
        ("aa|a", 3, "process 0 has 2 x a; process 1 has 1 x a"),
        ("aa|bb", 4, "process 0 has 2 x a; process 1 has 2 x b"),
        ("ab|ab", 4, "process 0 has 1 x a and 1 x b;"),
        ("aa|aa", 2, "must be 4, all devices of 2 processes with 2 x a each; got 2"),
    ],
)
def test_devices_that_differ_and_meshes_that_leave_some_out(
    monkeypatch: pytest.MonkeyPatch, found: str, size: int, said: str
) -> None:
    devices = [
        SimpleNamespace(process_index=process, device_kind=kind)
        for process, kinds in enumerate(found.split("|"))
        for kind in kinds
    ]
    monkeypatch.setattr(jax, "devices", lambda: devices)
    with pytest.raises(ValueError, match=said):
        check_devices(HOSTS, size)


def test_checkpoints_are_told_apart_by_what_is_in_them(tmp_path: Any) -> None:
    for name, config in {"a": "1", "b": "1", "c": "2"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(config)
    a, b, c = (facts(2, tmp_path / name, None, {"k": 3, "page": None}) for name in "abc")
    assert a == b and a["k"] == "3" and "page" not in a
    assert {name for name in a if a[name] != c[name]} == {"files of the model"}


class Elsewhere:
    """An array of which another process holds a part."""

    is_fully_addressable = False


def test_saving_and_measuring_need_all_of_a_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variables = {"x": SimpleNamespace(get_value=Elsewhere)}
    monkeypatch.setattr("convert.save.named_variables", lambda model: variables)
    with pytest.raises(ValueError, match="on several processes can't be saved: load it in one"):
        host_reader(nnx.Module())("x")
    executor = Executor.__new__(Executor)
    executor.state = SimpleNamespace(target_pools=(), draft_pools=())  # type: ignore[assignment]
    executor._sending = Elsewhere()  # type: ignore[assignment]
    with pytest.raises(ValueError, match="measured by an engine of one process"):
        executor.kv_peaks()
