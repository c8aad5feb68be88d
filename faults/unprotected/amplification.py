"""The broker without its limits on amplification. ``faults.log.amplification`` must detect each removal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from faults.patch import patch, shadow_builtin

__all__ = ["no_pattern_limit", "no_pending_limit", "no_response_limit", "no_session_limit"]


class _DuplicateNames:
    """Replaces ``dict`` where the product uses it to remove duplicate names."""

    @staticmethod
    def fromkeys(names: Iterable[str]) -> list[str]:
        return list(names)


class _Pairs(list[tuple[str, None]]):
    def items(self) -> list[tuple[str, None]]:
        return self


def no_response_limit() -> None:
    """Each repeated name gets its own part of the response, and the response grows with the number of names."""
    from headrace.broker.handlers import group_admin, group_offsets, transaction_admin
    from headrace.broker.net.responses import ResponseRoom

    patch(ResponseRoom, "take", lambda self, size: True)
    for module in (group_admin, transaction_admin):
        shadow_builtin(module, "dict", _DuplicateNames)
    patch(
        group_offsets,
        "_groups_once",
        lambda groups, *, by_id: _Pairs((group.group_id, None) for group in groups),
    )


def no_pending_limit() -> None:
    """Member ids are assigned without a limit, and are kept after their connection closes."""
    from headrace.broker.groups.member import PendingMembers

    patch(PendingMembers, "has_room", lambda self, member_id: True)
    patch(PendingMembers, "of_connection", lambda self, connection: [])


def no_session_limit() -> None:
    """Fetch sessions are kept without a limit, also after they are closed."""
    from headrace.broker.net.fetch_sessions import FetchSessions

    patch(FetchSessions, "_make_room", lambda self, now, size: True)
    patch(FetchSessions, "close", lambda self, session: None)


def no_pattern_limit() -> None:
    """Patterns are matched on the event loop, however long that takes."""
    from headrace.broker.handlers import transaction_admin

    async def inline(pattern: Any, texts: Sequence[str], executor: object) -> list[bool]:
        return [pattern.matches(text) for text in texts]

    patch(transaction_admin, "search", inline)
