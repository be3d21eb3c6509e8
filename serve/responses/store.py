"""In-memory store of responses, which clients can retrieve and continue."""

from collections import OrderedDict
from dataclasses import dataclass, field

from serve.asgi.errors import ApiError

MOST_ENTRIES, LEAST_ENTRIES = 4096, 256
MOST_BYTES, LEAST_BYTES = 256 * 2**20, 16 * 2**20
"""Limits over all API keys together, and the minimum for one key if there are many."""

CODES = {
    None: "response_not_found",
    "previous_response_id": "previous_response_not_found",
    "input": "item_not_found",
}
"""Error codes, by the field that refers to a missing response."""


@dataclass(eq=False)
class StoredTurn:
    """One stored response with its request, as JSON, and the turn that it continues.

    `body` is the whole response; `inputs` and `outputs` are lists of items.
    """

    response_id: str
    body: bytes
    inputs: bytes
    outputs: bytes
    previous: "StoredTurn | None" = field(default=None, repr=False)
    holders: int = 0
    """Number of references from the store and from retained later turns."""

    def __post_init__(self) -> None:
        earlier = self.previous.total_size if self.previous else 0
        self.total_size = len(self.inputs) + len(self.outputs) + earlier
        """Size of the whole conversation in bytes."""

    @property
    def size(self) -> int:
        """Size of this turn alone in bytes."""
        return len(self.body) + len(self.inputs) + len(self.outputs)

    def conversation(self) -> "list[StoredTurn]":
        """Return the turns of the conversation up to this one, the first one first."""
        turns: list[StoredTurn] = []
        turn: StoredTurn | None = self
        while turn is not None:
            turns.append(turn)
            turn = turn.previous
        return turns[::-1]


class ResponseStores:
    """One store for each API key, so that no key's responses evict those of another.

    The keys divide MOST_ENTRIES and MOST_BYTES equally, down to a minimum. Without keys all clients
    share one store.
    """

    def __init__(self, num_keys: int = 0) -> None:
        share = max(1, num_keys)
        self._num_keys = num_keys
        self._room = (
            max(MOST_ENTRIES // share, LEAST_ENTRIES),
            max(MOST_BYTES // share, LEAST_BYTES),
        )
        self._stores: dict[bytes, ResponseStore] = {}

    @property
    def num_entries(self) -> int:
        """Number of responses in all stores."""
        return sum(map(len, self._stores.values()))

    @property
    def num_bytes(self) -> int:
        """Size of all stores, retained earlier turns included."""
        return sum(store.num_bytes for store in self._stores.values())

    def of(self, owner: bytes) -> "ResponseStore":
        """Return the store that holds the responses of `owner`."""
        key = owner if self._num_keys else b""
        return self._stores.setdefault(key, ResponseStore(*self._room))


class ResponseStore:
    """Turns by owner and id, with LRU eviction. Used on the event loop only.

    Earlier turns of a stored conversation are retained with it, and count once however many turns
    continue them.
    """

    def __init__(self, most_entries: int = MOST_ENTRIES, most_bytes: int = MOST_BYTES) -> None:
        self._most_entries, self._most_bytes = most_entries, most_bytes
        self._turns: OrderedDict[tuple[bytes, str], StoredTurn] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._turns)

    def put(self, owner: bytes, turn: StoredTurn) -> None:
        """Store a turn, unless it exceeds the limit, and evict the least recently used ones."""
        if turn.size > self._most_bytes:
            return
        self._turns[owner, turn.response_id] = turn
        self._hold(turn)
        while len(self._turns) > self._most_entries or self.num_bytes > self._most_bytes:
            self._release(self._turns.popitem(last=False)[1])

    def get(self, owner: bytes, response_id: str, param: str | None = None) -> StoredTurn:
        """Return the turn; 404 if its owner has none with this id. `param`: field of the id."""
        turn = self._turns.get((owner, response_id))
        if turn is None:
            raise _not_found(response_id, param)
        self._turns.move_to_end((owner, response_id))
        return turn

    def delete(self, owner: bytes, response_id: str) -> None:
        """Delete a turn, except from later turns that continue it. Raises 404 like `get`."""
        self._release(self.get(owner, response_id))
        del self._turns[owner, response_id]

    def _hold(self, turn: StoredTurn | None) -> None:
        while turn is not None:
            turn.holders += 1
            if turn.holders > 1:
                return
            self.num_bytes += turn.size
            turn = turn.previous

    def _release(self, turn: StoredTurn | None) -> None:
        while turn is not None:
            turn.holders -= 1
            if turn.holders:
                return
            self.num_bytes -= turn.size
            turn = turn.previous


def _not_found(response_id: str, param: str | None) -> ApiError:
    message = f"there is no response {response_id[:100]!r}: it was deleted, made room for others, "
    message += "was not to be stored, or belongs to another key"
    return ApiError(404, message, param=param, code=CODES[param])
