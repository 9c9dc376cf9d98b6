"""The intermediate buffer I_B: unmatched tuples on their way from one parallel phase to the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    """What the buffer asks of its items."""

    @property
    def size_bytes(self) -> int: ...


Item = TypeVar("Item", bound=Sized)


class IntermediateBuffer(Generic[Item]):
    """A queue of tuple chunks with a limit in bytes. The caller holds the lock that guards it."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.bytes_held = 0
        self._items: deque[Item] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    def has_room(self, size: int) -> bool:
        """A first item is always let in, or a large one would wait for ever."""
        return not self._items or self.bytes_held + size <= self.limit_bytes

    def put(self, item: Item) -> None:
        self._items.append(item)
        self.bytes_held += item.size_bytes

    def get(self) -> Item:
        item = self._items.popleft()
        self.bytes_held -= item.size_bytes
        return item
