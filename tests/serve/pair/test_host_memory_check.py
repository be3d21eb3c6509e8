"""Host memory that isn't there is one line at start, which says what to do."""

import resource
from pathlib import Path

import jax
import pytest

from serve.pair import host_memory
from serve.pair.host_memory import GIB, check_host_memory


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """10 GiB free, no limits; a container's group, whose parent is the root."""
    (tmp_path / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {10 * 2**20} kB\n")
    (tmp_path / "cgroup").write_text("0::/pods/one\n")
    group = tmp_path / "groups/pods/one"
    group.mkdir(parents=True)
    monkeypatch.setattr(host_memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(host_memory, "OWN_GROUP", tmp_path / "cgroup")
    monkeypatch.setattr(host_memory, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(jax, "local_devices", lambda: [0] * 2)
    monkeypatch.setattr(jax, "devices", lambda: [0] * 4)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda which: unlimited)
    return group


def refused(wanted: int) -> str:
    with pytest.raises(ValueError) as error:
        check_host_memory(wanted)
    (line,) = str(error.value).splitlines()
    return line


def test_a_host_needs_its_devices_share_of_free_memory() -> None:
    check_host_memory(20 * GIB)
    assert "wants 10.5 GiB of this host's memory, of which 10.0 GiB are free" in refused(21 * GIB)


def test_gpus_need_the_right_to_pin_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (GIB, GIB))
    check_host_memory(2 * GIB)
    assert "may pin 1.0 GiB: raise it (ulimit -l unlimited" in refused(3 * GIB)
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    check_host_memory(3 * GIB)


@pytest.mark.parametrize("where", [".", ".."])
def test_a_containers_limit_counts_without_files_that_can_be_read_again(
    host: Path, where: str
) -> None:
    (host / "memory.max").write_text("max\n")
    group = host / where
    (group / "memory.max").write_text(f"{6 * GIB}\n")
    (group / "memory.current").write_text(f"{3 * GIB}\n")
    (group / "memory.stat").write_text(f"anon 5\ninactive_file {GIB}\nactive_file 7\n")
    check_host_memory(8 * GIB)
    assert "container or unit leaves 4.0 GiB: raise it (docker --memory" in refused(9 * GIB)
