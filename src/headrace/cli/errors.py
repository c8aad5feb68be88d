"""What can go wrong on the command line, and the exit code that a script sees for it.

    CliError              1  HR-CLI-FAILED         the command could not do what was asked
    ├── UsageError        2  HR-CLI-USAGE          the command line itself does not make sense
    ├── BrokerUnreachable 3  HR-CLI-UNREACHABLE    no broker answers at the given addresses
    ├── RecordsGone       4  HR-CLI-RECORDS-GONE   the records asked for were deleted before they were read
    ├── LagAbove          5  HR-CLI-LAG            ``lag --fail-above``
    ├── NotConfirmed      1  HR-CLI-NOT-CONFIRMED  a destructive command without a yes
    ├── DeliveryFailed    1  HR-CLI-DELIVERY       records that no broker acknowledged
    ├── DemoFailed        1  HR-CLI-DEMO           the demo's own ledger does not balance
    ├── TopicUnknown      1  HR-CLI-TOPIC-UNKNOWN
    ├── TopicExists       1  HR-CLI-TOPIC-EXISTS
    ├── GroupUnknown      1  HR-CLI-GROUP-UNKNOWN
    ├── GroupActive       1  HR-CLI-GROUP-ACTIVE   a group whose members are at work
    ├── ViewUnknown       1  HR-CLI-VIEW-UNKNOWN
    ├── ViewNotBuilt      1  HR-CLI-VIEW-NOT-BUILT a view whose store has nothing of it that could be read yet
    ├── SwitchRefused     1  HR-CLI-SWITCH         a view that cannot answer in another's place, or not yet
    ├── QueryRefused      1  HR-CLI-QUERY          a query that does not make sense, is not allowed, or takes too long
    └── BrokerRefused     1  HR-KAFKA-…            any other answer of the broker that is not a yes

An interrupt (Ctrl-C) leaves with 130, a reader of the output that went away
with 141, as if the signal had ended us.
"""

from __future__ import annotations

from headrace.errors import ConfigError, HeadraceError

__all__ = [
    "EXIT_BROKEN_PIPE",
    "EXIT_FAILED",
    "EXIT_INTERRUPTED",
    "BrokerRefused",
    "BrokerUnreachable",
    "CliError",
    "DeliveryFailed",
    "DemoFailed",
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


class DemoFailed(CliError):
    code = "HR-CLI-DEMO"


class TopicUnknown(CliError):
    code = "HR-CLI-TOPIC-UNKNOWN"

    def __init__(self, topic: str, *, partition: int | None = None) -> None:
        where = f"topic {topic!r}" if partition is None else f"partition {partition} of topic {topic!r}"
        super().__init__(
            f"{where} does not exist",
            hint="see what there is with: headrace topic list"
            + (f"; or make it with: headrace topic create {topic}" if partition is None else ""),
        )


class TopicExists(CliError):
    code = "HR-CLI-TOPIC-EXISTS"

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"topic {topic!r} already exists",
            hint="pass --if-not-exists if that is fine",
        )


class GroupUnknown(CliError):
    code = "HR-CLI-GROUP-UNKNOWN"

    def __init__(self, group: str) -> None:
        super().__init__(
            f"group {group!r} has neither members nor committed offsets",
            hint="see what there is with: headrace group list",
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
    """The broker's own answer; the code carries the protocol's name for it, e.g. HR-KAFKA-INVALID_CONFIG."""

    def __init__(
        self, message: str, *, name: str, detail: str = "", hint: str = "", retriable: bool = False
    ) -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.code = f"HR-KAFKA-{name}"
        self.retriable = retriable


def exit_code_of(error: HeadraceError) -> int:
    if isinstance(error, CliError):
        return error.exit_code
    return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED
