"""A record for each world, in the one process that runs the world's tests."""

from collections.abc import Iterator

import pytest
from catalogue import WORLDS
from record import Record, held
from world import World


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Worlds that share programs are one xdist group."""
    if "record_of_world" in metafunc.fixturenames:
        fits = getattr(metafunc.function, "fits", lambda world: True)
        parameters = [
            pytest.param(
                world,
                id=world.name,
                marks=[
                    pytest.mark.xdist_group(world.program),
                    *[pytest.mark.optimised] * world.optimised,
                    *[pytest.mark.long] * world.long,
                ],
            )
            for world in filter(fits, WORLDS)
        ]
        metafunc.parametrize("world", parameters, scope="module")


@pytest.fixture(scope="module")
def record_of_world(world: World, pytestconfig: pytest.Config) -> Record:
    """Driven when a law first looks at it, and kept until the next world's."""
    return Record.of(world, world.long_count if pytestconfig.getoption("long") else world.count)


@pytest.fixture
def record(record_of_world: Record) -> Iterator[Record]:
    """The record; its engine is clean after each law."""
    yield record_of_world
    assert held(record_of_world.engine) == []
