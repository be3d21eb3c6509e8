"""Group parameters into Orbax items, each of which is written once."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from convert.store.parameter import Parameter

ITEM_BYTES = 256 * 2**20
ROOT = "model-root"
"""Item of the root module: no attribute of a module can have this name."""


@dataclass(frozen=True)
class Item:
    """Parameters that are held in memory and written together; `name` is their folder's."""

    name: str
    parameters: tuple[Parameter, ...]

    @property
    def nbytes(self) -> int:
        """Total size of the parameters in bytes."""
        return sum(parameter.nbytes for parameter in self.parameters)


def group(parameters: Sequence[Parameter], item_bytes: int = ITEM_BYTES) -> tuple[Item, ...]:
    """Group by the model's tree: a module that fits `item_bytes` is one item, else it is split.

    The small children of a split module form one item under the module's name. A parameter larger
    than `item_bytes` is an item by itself. Raises ValueError for a path that occurs twice.
    """
    seen: set[str] = set()
    for parameter in parameters:
        if parameter.path in seen:
            raise ValueError(f"parameter {parameter.path} occurs twice")
        seen.add(parameter.path)
    return tuple(_split("", tuple(parameters), item_bytes))


def _split(prefix: str, parameters: tuple[Parameter, ...], limit: int) -> Iterator[Item]:
    whole = Item(prefix or ROOT, parameters)
    if whole.nbytes <= limit:
        yield whole
        return
    children: defaultdict[str, list[Parameter]] = defaultdict(list)
    for parameter in parameters:
        children[_child(prefix, parameter.path)].append(parameter)
    items = [Item(name, tuple(members)) for name, members in children.items()]
    small = [item for item in items if item.nbytes <= limit]
    together = tuple(parameter for item in small for parameter in item.parameters)
    if len(small) > 1 and sum(item.nbytes for item in small) <= limit:
        small = [Item(whole.name, together)]
    yield from small
    for item in items:
        if item.nbytes > limit:
            alone = len(item.parameters) == 1
            yield from (item,) if alone else _split(item.name, item.parameters, limit)


def _child(prefix: str, path: str) -> str:
    """Return `layers.3` for prefix `layers` and path `layers.3.mlp.gate.kernel`."""
    rest = path[len(prefix) :].lstrip(".")
    return f"{prefix}.{rest.partition('.')[0]}".lstrip(".")
