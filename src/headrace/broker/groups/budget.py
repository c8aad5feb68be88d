"""Memory that all groups together take, and the part of it that is names."""

from __future__ import annotations

from headrace.broker.groups.settings import GroupSettings
from headrace.broker.sizes import text_bytes

__all__ = ["GROUP_BYTES", "Budget"]

#: A group without members: its state, its timers and its entry in the journal.
GROUP_BYTES = 2_048


class Budget:
    """Invariant: ``used_bytes`` is the sum over all groups that are known, and ``names_bytes`` that of their ids and
    protocol types.
    """

    __slots__ = ("_bytes_max", "_names_bytes_max", "names_bytes", "used_bytes")

    def __init__(self, settings: GroupSettings) -> None:
        self.used_bytes = 0
        self.names_bytes = 0
        self._bytes_max = settings.all_groups_bytes_max
        self._names_bytes_max = settings.all_group_names_bytes_max

    def has_room(self, size: int, names: int = 0) -> bool:
        """Whether ``size`` bytes more fit, of which ``names`` are names."""
        return (size <= 0 or self.used_bytes + size <= self._bytes_max) and (
            names <= 0 or self.names_bytes + names <= self._names_bytes_max
        )

    def has_room_for(self, group_id: str, protocol_type: str = "", members_bytes: int = 0) -> bool:
        """Whether a new group fits."""
        names = text_bytes(group_id) + text_bytes(protocol_type)
        return self.has_room(GROUP_BYTES + names + members_bytes, names)

    def count(self, size: int, names: int = 0) -> None:
        self.used_bytes += size
        self.names_bytes += names
