"""A record for each world, in the one process that runs the world's tests."""

from collections.abc import Iterator

import pytest
from catalogue import WORLDS
from record import Record, held
from room import make_room
from world import World


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give every law all worlds; worlds that share programs are one xdist group.

    pytest orders by a parameter's index, so the tests of one world run in succession.
    """
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
                    *[pytest.mark.skip("not a law of this world")] * (not fits(world)),
                ],
            )
            for world in WORLDS
        ]
        metafunc.parametrize("world", parameters, scope="module")


@pytest.fixture(scope="module")
def record_of_world(world: World, pytestconfig: pytest.Config) -> Iterator[Record]:
    """Run the world's traffic on first access, and keep the record until the next world."""
    long = pytestconfig.getoption("long")
    yield Record.of(world, world.long_count if long else world.count)
    make_room()


@pytest.fixture
def room_after_each() -> Iterator[None]:
    """Free memory after a test that has its own engine."""
    yield
    make_room()


@pytest.fixture
def record(record_of_world: Record) -> Iterator[Record]:
    """Return the record; check that its engine is idle after each law."""
    yield record_of_world
    assert held(record_of_world.engine) == []
