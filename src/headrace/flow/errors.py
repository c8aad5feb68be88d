"""What stops a flow, in the user's terms.

FlowError              (HR-FLOW-…)
├── FlowFenced         another driver runs the flow now; this one has changed nothing since
├── ProducerFenced     the log refuses the flow's producer; the record of the owner tells why
├── TransactionTimedOut  one batch takes longer than a transaction may, again and again
├── FlowNameTaken      the flow of this name on the log belongs to another app
├── CheckpointLost     Spark's state of the flow is not where it was
├── CheckpointStale    Spark's state and the log do not belong together
├── StateDamaged       Spark's state cannot be read
├── FlowChanged        the function is not the one that made what is there
├── InputGone          records that the flow needs were deleted from the log
├── InputReplaced      an input topic was deleted and made again, or is of another generation
├── TableRepartitioned a table that the flow reads has another number of partitions
├── OutputCompacted    the topic of a flow in real time is compacted, which would keep rows that came again
├── SlotsTaken         a flow in real time holds a task slot for each partition, and there are too few
├── RowTooLarge        a row has more bytes than its topic takes
└── FlowFailed         anything else that Spark or the function has raised
"""

from __future__ import annotations

from datetime import UTC, datetime

from headrace.errors import HeadraceError
from headrace.model.progress import Driver

__all__ = [
    "CheckpointLost",
    "CheckpointStale",
    "FlowChanged",
    "FlowError",
    "FlowFailed",
    "FlowFenced",
    "FlowNameTaken",
    "InputGone",
    "InputReplaced",
    "OutputCompacted",
    "ProducerFenced",
    "RowTooLarge",
    "SlotsTaken",
    "StateDamaged",
    "TableRepartitioned",
    "TransactionTimedOut",
    "rebuild_hint",
]


def rebuild_hint(flow: str) -> str:
    return (
        f"headrace flow rebuild APP {flow} starts a new generation, derived again from the log;"
        " what is there now stays readable until then"
    )


class FlowError(HeadraceError):
    code = "HR-FLOW"


class FlowFenced(FlowError):
    code = "HR-FLOW-FENCED"

    def __init__(self, flow: str, driver: Driver | None) -> None:
        if driver is None:
            name = "another driver"
        else:
            opened = datetime.fromtimestamp(driver.opened_ms / 1_000, UTC)
            name = f"process {driver.pid} on {driver.host}, at {opened:%Y-%m-%d %H:%M:%S} UTC"
        super().__init__(
            f"flow {flow} was taken over by {name}; this driver has written nothing since",
            hint="one driver at a time runs a flow: stop the other one, or leave the flow to it",
        )


class ProducerFenced(FlowError):
    """Either the flow's transaction ran out of time, or another driver opened the flow."""

    code = "HR-FLOW-FENCED"
    retriable = True

    def __init__(self, flow: str, *, open_ms: int, detail: str) -> None:
        super().__init__(
            f"flow {flow}: the log refuses its producer, {open_ms} ms after the transaction began; the flow is opened"
            " again",
            detail=detail,
            hint="if this repeats, set flow.transaction_timeout_ms higher",
        )
        self.open_ms = open_ms


class TransactionTimedOut(FlowError):
    code = "HR-FLOW-TRANSACTION-TIMEOUT"


class FlowNameTaken(FlowError):
    code = "HR-FLOW-NAME-TAKEN"


class CheckpointLost(FlowError):
    code = "HR-FLOW-CHECKPOINT-LOST"


class CheckpointStale(FlowError):
    code = "HR-FLOW-CHECKPOINT-STALE"


class StateDamaged(FlowError):
    code = "HR-FLOW-STATE-DAMAGED"


class FlowChanged(FlowError):
    code = "HR-FLOW-CHANGED"


class InputGone(FlowError):
    code = "HR-FLOW-INPUT-GONE"


class InputReplaced(FlowError):
    code = "HR-FLOW-INPUT-REPLACED"


class TableRepartitioned(FlowError):
    code = "HR-FLOW-TABLE-PARTITIONS"

    def __init__(self, flow: str, topic: str, was: int, now: int) -> None:
        super().__init__(
            f"table {topic}, which flow {flow} reads, has {now} partitions, and had {was} when the generation began",
            detail="keys have moved between partitions, so offsets do not tell which of two rows of a key is newer",
            hint=rebuild_hint(flow),
        )


class OutputCompacted(FlowError):
    code = "HR-FLOW-OUTPUT-COMPACTED"


class SlotsTaken(FlowError):
    """It heals where more executors may come."""

    code = "HR-FLOW-SLOTS"

    def __init__(self, message: str, *, detail: str, hint: str, retriable: bool) -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.retriable = retriable


class RowTooLarge(FlowError):
    code = "HR-FLOW-ROW-TOO-LARGE"


class FlowFailed(FlowError):
    code = "HR-FLOW-FAILED"
