"""The broker without what keeps small requests small: for ``bench.faults.x32_amplification`` to notice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["no_pattern_limit", "no_pending_limit", "no_response_limit", "no_session_limit"]


class _Repeating:
    """In the place of ``dict`` where it makes names unique."""

    @staticmethod
    def fromkeys(names: Iterable[str]) -> list[str]:
        return list(names)


class _Pairs(list[tuple[str, None]]):
    def items(self) -> list[tuple[str, None]]:
        return self


def no_response_limit() -> None:
    """A repeated name is answered each time, and a response grows for as long as there are names."""
    from headrace.broker.handlers import describe_groups, describe_transactions, offset_fetch
    from headrace.broker.response_room import ResponseRoom

    ResponseRoom.take = lambda self, size: True  # type: ignore[method-assign]
    for module in (describe_groups, describe_transactions):
        vars(module)["dict"] = _Repeating
    vars(offset_fetch)["_groups_once"] = lambda groups, *, by_id: _Pairs(
        (one.group_id, None) for one in groups
    )


def no_pending_limit() -> None:
    """Member ids are given out for as long as anybody asks, and outlive their connection."""
    from headrace.broker.groups.pending_members import PendingMembers

    PendingMembers.has_room = lambda self, member_id: True  # type: ignore[method-assign]
    PendingMembers.of_connection = lambda self, connection: []  # type: ignore[method-assign]


def no_session_limit() -> None:
    """Every fetch session is kept, whatever it names."""
    from headrace.broker.fetch_sessions import FetchSessions

    FetchSessions._make_room = lambda self, now, size: True  # type: ignore[method-assign]
    FetchSessions.close = lambda self, session: None  # type: ignore[method-assign]


def no_pattern_limit() -> None:
    """Patterns are matched on the event loop, however long that takes."""
    from headrace.broker.handlers import list_transactions

    async def inline(pattern: Any, texts: Sequence[str], executor: object) -> list[bool]:
        return [pattern.matches(text) for text in texts]

    vars(list_transactions)["search"] = inline
