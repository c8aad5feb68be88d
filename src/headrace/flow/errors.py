"""Errors that stop a flow, in the user's terms.

FlowError              (HR-FLOW-…)
├── FlowFenced         another driver took over the flow; this driver has written nothing since
├── ProducerFenced     the log rejects the flow's producer; Headrace reopens the flow
├── TransactionTimedOut  one batch repeatedly exceeds the transaction timeout
├── TopicTaken         another flow writes the topic
├── CheckpointLost     Spark's checkpoint of the flow does not exist
├── CheckpointStale    Spark's checkpoint does not match the log
├── StateDamaged       Spark cannot read its state
├── FlowChanged        the function changed after it derived this generation
├── SwitchUnderWay     the flow is switching to this generation; Headrace opens it again afterwards
├── GenerationMoved    the flow switched to another generation or back; Headrace opens the generation again
├── InputDeleted       records that the flow needs were deleted from the log
├── InputReplaced      an input topic was deleted and created again, or has a new generation
│   └── UpstreamSwitched  a flow of another app, whose rows the flow reads, switched to another generation
├── TableRepartitioned the number of partitions of a table changed
├── PartitionsAdded    an input has new partitions; Headrace reopens the flow
├── OutputCompacted    the output topic of a real-time flow is compacted, which could retain repeated rows
├── SlotsTaken         too few task slots for a real-time flow, which needs one for each input partition
├── RowTooLarge        a row exceeds the limit of its topic
└── FlowFailed         any other error of Spark or the function
"""

from __future__ import annotations

from datetime import UTC, datetime

from headrace.app_argument import app_argument
from headrace.errors import HeadraceError
from headrace.model.progress import Driver

__all__ = [
    "CheckpointLost",
    "CheckpointStale",
    "FlowChanged",
    "FlowError",
    "FlowFailed",
    "FlowFenced",
    "GenerationMoved",
    "InputDeleted",
    "InputReplaced",
    "OutputCompacted",
    "PartitionsAdded",
    "ProducerFenced",
    "RowTooLarge",
    "SlotsTaken",
    "StateDamaged",
    "SwitchUnderWay",
    "TableRepartitioned",
    "TopicTaken",
    "TransactionTimedOut",
    "UpstreamSwitched",
    "rebuild_hint",
]


def rebuild_hint(flow: str) -> str:
    return (
        f"run headrace flow rebuild {app_argument()} {flow}: it derives a new generation from the log;"
        " the current generation remains readable until then"
    )


class FlowError(HeadraceError):
    code = "HR-FLOW"


class PartitionsAdded(FlowError):
    code = "HR-FLOW-PARTITIONS-ADDED"
    retriable = True


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
            hint="only one driver at a time can run a flow: stop one of the two",
        )


class ProducerFenced(FlowError):
    """Either the flow's transaction timed out, or another driver opened the flow."""

    code = "HR-FLOW-FENCED"
    retriable = True

    def __init__(self, flow: str, *, open_ms: int, detail: str) -> None:
        super().__init__(
            f"flow {flow}: the log rejected its producer {open_ms} ms after the transaction began; reopening the flow",
            detail=detail,
            hint="if this repeats, increase flow.transaction_timeout_ms",
        )
        self.open_ms = open_ms


class TransactionTimedOut(FlowError):
    code = "HR-FLOW-TRANSACTION-TIMEOUT"


class TopicTaken(FlowError):
    code = "HR-FLOW-TOPIC-TAKEN"


class CheckpointLost(FlowError):
    code = "HR-FLOW-CHECKPOINT-LOST"


class CheckpointStale(FlowError):
    code = "HR-FLOW-CHECKPOINT-STALE"


class StateDamaged(FlowError):
    code = "HR-FLOW-STATE-DAMAGED"


class FlowChanged(FlowError):
    code = "HR-FLOW-CHANGED"


class SwitchUnderWay(FlowError):
    code = "HR-FLOW-SWITCH"
    retriable = True

    def __init__(self, flow: str, number: int) -> None:
        super().__init__(
            f"flow {flow} is switching to generation {number}; it continues after the switch",
            hint=f"if this lasts, complete the switch: headrace generation switch {app_argument()} {flow} {number}",
        )


class GenerationMoved(FlowError):
    """The log rejected the driver because the flow switched between generations."""

    code = "HR-FLOW-SWITCH"
    retriable = True

    def __init__(self, flow: str, number: int) -> None:
        super().__init__(
            f"flow {flow} switched between generations; generation {number} continues",
            hint="no action is needed",
        )


class InputDeleted(FlowError):
    code = "HR-FLOW-INPUT-GONE"


class InputReplaced(FlowError):
    code = "HR-FLOW-INPUT-REPLACED"


class UpstreamSwitched(InputReplaced):
    code = "HR-FLOW-UPSTREAM-SWITCHED"


class TableRepartitioned(FlowError):
    code = "HR-FLOW-TABLE-PARTITIONS"

    def __init__(self, flow: str, topic: str, was: int, now: int) -> None:
        super().__init__(
            f"table {topic}, which flow {flow} reads, has {now} partitions now but had {was} when the generation began",
            detail="keys moved between partitions, so offsets do not show which of two rows of a key is newer",
            hint=rebuild_hint(flow),
        )


class OutputCompacted(FlowError):
    code = "HR-FLOW-OUTPUT-COMPACTED"


class SlotsTaken(FlowError):
    """On a cluster, a retry succeeds when more executors have started."""

    code = "HR-FLOW-SLOTS"

    def __init__(self, message: str, *, detail: str, hint: str, retriable: bool) -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.retriable = retriable


class RowTooLarge(FlowError):
    code = "HR-FLOW-ROW-TOO-LARGE"


class FlowFailed(FlowError):
    code = "HR-FLOW-FAILED"
