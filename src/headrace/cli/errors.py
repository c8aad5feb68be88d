"""Errors of the command line, each with its exit code.

    CliError              1  HR-CLI-FAILED         the command failed
    ├── UsageError        2  HR-CLI-USAGE          the command line is invalid
    ├── BrokerUnreachable 3  HR-CLI-UNREACHABLE    no broker responds at the addresses
    ├── RecordsGone       4  HR-CLI-RECORDS-GONE   the requested records were deleted before they were read
    ├── LagAbove          5  HR-CLI-LAG            the lag is above ``lag --fail-above``
    ├── NotConfirmed      1  HR-CLI-NOT-CONFIRMED  the user did not confirm a destructive command
    ├── DeliveryFailed    1  HR-CLI-DELIVERY       no broker acknowledged some records
    ├── TopicUnknown      1  HR-CLI-TOPIC-UNKNOWN
    ├── TopicExists       1  HR-CLI-TOPIC-EXISTS
    ├── GroupUnknown      1  HR-CLI-GROUP-UNKNOWN
    ├── GroupActive       1  HR-CLI-GROUP-ACTIVE   the group has active members
    ├── ViewUnknown       1  HR-CLI-VIEW-UNKNOWN
    ├── ViewNotBuilt      1  HR-CLI-VIEW-NOT-BUILT the view does not serve rows yet
    ├── SwitchRefused     1  HR-CLI-SWITCH         a view cannot replace another view, or cannot do so yet
    ├── QueryRefused      1  HR-CLI-QUERY          the query is invalid, not allowed or too slow
    └── BrokerRefused     1  HR-KAFKA-…            any other error of the broker

Ctrl-C exits with 130. Closed output exits with 141, like a process that SIGPIPE ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import ConfigError, HeadraceError

__all__ = [
    "EXIT_BROKEN_PIPE",
    "EXIT_FAILED",
    "EXIT_INTERRUPTED",
    "BrokerRefused",
    "BrokerUnreachable",
    "CliError",
    "DeliveryFailed",
    "GroupActive",
    "GroupUnknown",
    "LagAbove",
    "NotConfirmed",
    "QueryRefused",
    "RecordsGone",
    "SwitchRefused",
    "TopicExists",
    "TopicUnknown",
    "UsageError",
    "ViewNotBuilt",
    "ViewUnknown",
    "exit_code_of",
    "raise_first",
]

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


class CliError(HeadraceError):
    code = "HR-CLI-FAILED"
    exit_code = EXIT_FAILED


class UsageError(CliError):
    code = "HR-CLI-USAGE"
    exit_code = EXIT_USAGE


class BrokerUnreachable(CliError):
    code = "HR-CLI-UNREACHABLE"
    exit_code = 3
    retriable = True


class RecordsGone(CliError):
    code = "HR-CLI-RECORDS-GONE"
    exit_code = 4


class LagAbove(CliError):
    code = "HR-CLI-LAG"
    exit_code = 5


class NotConfirmed(CliError):
    code = "HR-CLI-NOT-CONFIRMED"


class DeliveryFailed(CliError):
    code = "HR-CLI-DELIVERY"


class TopicUnknown(CliError):
    code = "HR-CLI-TOPIC-UNKNOWN"

    def __init__(self, topic: str, *, partition: int | None = None) -> None:
        where = f"topic {topic!r}" if partition is None else f"partition {partition} of topic {topic!r}"
        super().__init__(
            f"{where} does not exist",
            hint="list topics with: headrace topic list"
            + (f"; or create it with: headrace topic create {topic}" if partition is None else ""),
        )


class TopicExists(CliError):
    code = "HR-CLI-TOPIC-EXISTS"

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"topic {topic!r} already exists",
            hint="pass --if-not-exists to accept an existing topic",
        )


class GroupUnknown(CliError):
    code = "HR-CLI-GROUP-UNKNOWN"

    def __init__(self, group: str) -> None:
        super().__init__(
            f"group {group!r} has neither members nor committed offsets",
            hint="list groups with: headrace group list",
        )


class GroupActive(CliError):
    code = "HR-CLI-GROUP-ACTIVE"
    retriable = True


class ViewUnknown(CliError):
    code = "HR-CLI-VIEW-UNKNOWN"

    def __init__(self, where: str, view: str, known: list[str]) -> None:
        super().__init__(
            f"{where} has no view {view!r}", hint=f"it has {', '.join(known)}" if known else "it has no views"
        )


class ViewNotBuilt(CliError):
    code = "HR-CLI-VIEW-NOT-BUILT"
    retriable = True


class SwitchRefused(CliError):
    code = "HR-CLI-SWITCH"


class QueryRefused(CliError):
    code = "HR-CLI-QUERY"


class BrokerRefused(CliError):
    """An error response of the broker, with the protocol's name in its code, e.g. HR-KAFKA-INVALID_CONFIG."""

    def __init__(
        self, message: str, *, name: str, detail: str = "", hint: str = "", retriable: bool = False
    ) -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.code = f"HR-KAFKA-{name}"
        self.retriable = retriable


def raise_first(failures: Sequence[HeadraceError], kind: str) -> None:
    """Raise the first failure. If several failed, its detail lists the others."""
    if not failures:
        return
    first = failures[0]
    if len(failures) > 1:
        others = "; ".join(f"{error.message} [{error.code}]" for error in failures[1:])
        first.detail = (
            f"{first.detail}; " * bool(first.detail) + f"{len(failures)} {kind} failed, also: {others}"
        )
    raise first


def exit_code_of(error: HeadraceError) -> int:
    if isinstance(error, CliError):
        return error.exit_code
    return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED
