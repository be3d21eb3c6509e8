"""Imports point down, from eagle3_tools to pallas_kernels, and in serve/ as ROOMS allows."""

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from test_dependencies import ROOT, modules_of, parse

FLOORS = ("pallas_kernels", "eagle3_jax", "convert", "serve", "eagle3_tools")
FOLDERS = {floor: ROOT / floor for floor in FLOORS} | {"eagle3_tools": ROOT / "tools"}
NOT_BELOW = {
    "pallas_kernels": {"flax", "transformers", "fastapi", "argparse", "torch"},
    "eagle3_jax": {"transformers", "fastapi", "uvicorn", "argparse", "torch", "safetensors"},
    "convert": {"fastapi", "uvicorn", "torch"},
    "serve": set(),
    "eagle3_tools": set(),
}
EXEMPT = {"convert/equivalence": {"torch"}}
"""The comparison with torch; no other folder of the product imports torch."""

COMMANDS = {"generate", "train"}
"""Rooms of commands: they may import every other room, and no room imports them."""
ROOMS: dict[str, set[str]] = {
    "responses": {
        *("openai", "telemetry", "chat_format", "asgi", "engine", "pair", "options", "images"),
    },
    "anthropic": {"openai", "telemetry", "chat_format", "asgi", "engine", "pair", "options"},
    "sglang": {
        *("openai", "telemetry", "chat_format", "asgi", "engine", "pair", "options", "images"),
    },
    "openai": {
        *("telemetry", "chat_format", "asgi", "engine", "pair", "options", "kv_transfer", "images"),
    },
    "telemetry": {"asgi", "engine", "options", "kv_transfer"},
    "chat_format": {"engine", "sandbox"},
    "hosts": {"asgi", "engine", "pair", "options"},
    "asgi": {"engine"},
    "demo": {"options"},
    "engine": {"pair", "options", "sandbox"},
    "pair": {"options"},
    "options": {"kv_events", "kv_transfer", "images"},
    "kv_transfer": set(),
    "kv_events": set(),
    "images": {"sandbox"},
    "sandbox": set(),
    "page": set(),
}
"""Rooms of serve/ -> the rooms that each may import, all of which are further down."""
NOT_IN_ROOM = {
    "engine": {"starlette", "fastapi", "uvicorn", "h11", "http", "pydantic"},
    "chat_format": {"starlette", "fastapi", "uvicorn", "h11", "http", "pydantic"},
    "images": {"starlette", "fastapi", "uvicorn", "h11", "http", "pydantic"},
}
"""The engine's room has no HTTP; chat formats and images have no request or response bodies."""


@cache
def modules_imported(path: Path) -> set[str]:
    """Return the modules that a file imports from, anywhere in it."""
    return set(modules_of(ast.walk(parse(path))))


def imported(path: Path) -> set[str]:
    """Return the top-level packages that a file imports anywhere."""
    return {module.partition(".")[0] for module in modules_imported(path)}


def exempt(path: Path) -> set[str]:
    """Return packages that this file may import as an exception."""
    return EXEMPT.get(str(path.parent.relative_to(ROOT)), set())


@pytest.mark.parametrize("floor", FLOORS)
def test_imports_point_down(floor: str) -> None:
    above = set(FLOORS[FLOORS.index(floor) + 1 :])
    files = sorted(FOLDERS[floor].rglob("*.py"))
    assert files
    wrong = {
        str(path.relative_to(ROOT)): sorted(found)
        for path in files
        if (found := imported(path) & (above | NOT_BELOW[floor] | {"tests"}) - exempt(path))
    }
    assert not wrong


def module_graph() -> dict[str, set[str]]:
    """Every module, and the modules that it imports. A package stands for none of its modules."""
    files: dict[str, Path] = {}
    for floor, folder in FOLDERS.items():
        root = ROOT / "tools" if floor == "eagle3_tools" else ROOT
        for path in folder.rglob("*.py"):
            if path.name != "__init__.py":
                files[".".join(path.relative_to(root).with_suffix("").parts)] = path
    return {name: modules_imported(path) & (files.keys() - {name}) for name, path in files.items()}


def assert_no_cycle(graph: dict[str, set[str]]) -> None:
    """Raise CycleError, with the cycle, unless the graph has an order."""
    TopologicalSorter(graph).prepare()


def test_no_module_imports_itself_through_others() -> None:
    assert_no_cycle(module_graph())


def test_the_parts_of_the_engine_import_one_way() -> None:
    parts: dict[str, set[str]] = {}
    prefix = "eagle3_jax.engine."
    for name, imported_names in module_graph().items():
        if name.startswith(prefix):
            part = name.split(".")[2]
            below = {other.split(".")[2] for other in imported_names if other.startswith(prefix)}
            parts.setdefault(part, set()).update(below - {part})
    assert len(parts) > 10
    assert_no_cycle(parts)


def rooms_imported(path: Path) -> set[str]:
    """Return rooms of serve/, or modules directly in it, that a file imports."""
    return {name.split(".")[1] for name in modules_imported(path) if name.startswith("serve.")}


def test_every_folder_of_serve_is_a_room_that_the_matrix_knows() -> None:
    folders = {path.parent.name for path in (ROOT / "serve").glob("*/*.py")}
    assert folders <= ROOMS.keys() | COMMANDS


def test_the_matrix_of_rooms_has_no_circle() -> None:
    order = list(ROOMS)
    for place, (room, below) in enumerate(ROOMS.items()):
        assert below <= set(order[place + 1 :]), room


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_rightward(room: str) -> None:
    files = sorted((ROOT / "serve" / room).rglob("*.py"))
    wrong = {
        str(path.relative_to(ROOT)): sorted(found)
        for path in files
        if (
            found := (rooms_imported(path) - {room}) - ROOMS[room]
            | imported(path) & NOT_IN_ROOM.get(room, set())
        )
    }
    assert not wrong


def test_the_engines_room_names_no_http_status() -> None:
    for path in (ROOT / "serve" / "engine").rglob("*.py"):
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, int):
                assert not 400 <= node.value < 600, f"{path}:{node.lineno}"
