"""What was read and may be wanted again, within a limit in bytes; what was used longest ago goes first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["ByteCache"]

V = TypeVar("V")


class ByteCache(Generic[V]):
    """May be used by any thread. A value that is larger than the limit is not kept."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self._values: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self._mutex = threading.Lock()

    def get(self, key: Hashable) -> V | None:
        with self._mutex:
            found = self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def put(self, key: Hashable, value: V, size: int) -> None:
        with self._mutex:
            self._remove(key)
            if size > self.bytes_max:
                return
            while self.bytes + size > self.bytes_max:
                self._remove(next(iter(self._values)))
            self._values[key] = value, size
            self.bytes += size

    def remove(self, key: Hashable) -> None:
        with self._mutex:
            self._remove(key)

    def clear(self) -> None:
        with self._mutex:
            self._values.clear()
            self.bytes = 0

    def _remove(self, key: Hashable) -> None:
        found = self._values.pop(key, None)
        if found is not None:
            self.bytes -= found[1]
