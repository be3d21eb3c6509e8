"""A record for each world, in the one process that runs the world's tests."""

from collections.abc import Iterator

import pytest
from catalogue import WORLDS
from record import Record, held
from room import make_room
from world import World


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Worlds that share programs are one xdist group.

    Every law has every world, so that tests of one world come after each other: pytest orders by a
    parameter's place.
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
    """Driven when a law first looks at it, and kept until the next world's."""
    long = pytestconfig.getoption("long")
    yield Record.of(world, world.long_count if long else world.count)
    make_room()


@pytest.fixture
def room_after_each() -> Iterator[None]:
    """For tests that have an engine each."""
    yield
    make_room()


@pytest.fixture
def record(record_of_world: Record) -> Iterator[Record]:
    """The record; its engine is clean after each law."""
    yield record_of_world
    assert held(record_of_world.engine) == []
