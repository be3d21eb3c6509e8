"""Ray's placement of an engine's processes, on a machine that claims to have GPUs."""

from collections.abc import Iterator
from typing import Any

import pytest

from serve.options.ray import RayOptions

ray: Any = pytest.importorskip("ray", reason="Ray is not installed; see make ray-test")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Address of a machine that has four GPUs and two CPUs, as Ray believes."""
    ray.init(num_cpus=2, num_gpus=4, include_dashboard=False)
    yield ray.util.get_node_ip_address()
    ray.shutdown()


def options(processes: int, devices_each: int) -> RayOptions:
    return RayOptions(processes, devices_each, 8476, 8477, False)


def test_each_process_has_its_gpus_and_the_first_is_here(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from serve.hosts.ray_actors import reserve_placement

    group = reserve_placement(options(2, 2), address)
    first, second = group.bundle_specs
    assert first == {"CPU": 1.0, "GPU": 2.0, f"node:{address}": 0.001}
    assert second == {"CPU": 1.0, "GPU": 2.0}
    ray.util.remove_placement_group(group)
    monkeypatch.setattr("serve.hosts.ray_actors.PLACE_S", 3.0)
    with pytest.raises(ValueError, match=r"no room for 2 processes of .*'GPU': 3.* after 3 s"):
        reserve_placement(options(2, 3), address)
