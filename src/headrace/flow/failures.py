"""What Spark raises, in the user's terms: which of our errors it is, and whether it heals by itself."""

from __future__ import annotations

import re

from pyspark.errors import PySparkException

from headrace.errors import HeadraceError
from headrace.flow.errors import FlowChanged, FlowFailed, InputGone, RowTooLarge, StateDamaged, rebuild_hint
from headrace.model.flow import Flow

__all__ = ["explain", "heals"]

# The log cannot be reached, or is starting: Spark's connector gives up after a while, and the flow begins again.
_HEALS = re.compile(
    r"TimeoutException|DisconnectException|Failed to construct kafka|COORDINATOR_(NOT_AVAILABLE|LOAD)"
    r"|NOT_LEADER_OR_FOLLOWER|NetworkException|Connection refused|UnknownTopicOrPartitionException"
    # Partitions were added between the question for them and the start of the query.
    r"|must specify all TopicPartitions"
    r"|LEADER_NOT_AVAILABLE|BROKER_NOT_AVAILABLE|TIMED_OUT|CONCURRENT_STREAM_LOG_UPDATE"
)
_GONE = re.compile(
    r"KAFKA_DATA_LOSS|OffsetOutOfRange|offsets? (was|were) changed|Some data may have been lost"
)
_STATE = re.compile(
    r"CANNOT_LOAD_STATE_STORE|StateStoreException|FAILED_TO_LOAD_STATE|CANNOT_READ_STATE|\.delta does not exist"
    r"|MISSING_STATE_DIRECTORY|Failed to read log file|Incomplete log file|ChecksumException"
)
_CHANGED = re.compile(
    r"STATE_STORE_\w*(NOT_COMPATIBLE|MISMATCH|SCHEMA)|StateSchemaNotCompatible|STATEFUL_OPERATOR_NOT_MATCH"
    r"|STREAMING_STATEFUL_OPERATOR_NOT_MATCH|INVALID_STREAMING_\w+|STATE_STORE_OPERATOR"
)
_LARGE = re.compile(r"RecordTooLargeException")
_CAUSE = re.compile(r"(?:Caused by: |^)([\w.$]+(?:Exception|Error)): ([^\n]*)", re.MULTILINE)
_LONGEST = 600


def heals(error: BaseException) -> bool:
    """Whether beginning again, after a pause, can help."""
    if isinstance(error, HeadraceError):
        return error.retriable
    told = str(error)
    return not _GONE.search(told) and _HEALS.search(told) is not None


def explain(flow: Flow, error: BaseException, standing: str = "", output: str = "") -> HeadraceError:
    """``standing`` is where the flow's state is, and what the log knows of it; ``output`` what the log calls the topic
    that it writes.
    """
    if isinstance(error, HeadraceError):
        return error
    text = str(error)
    kind: type[HeadraceError]
    if _LARGE.search(text):
        topic = output or flow.writes.name
        return RowTooLarge(
            f"flow {flow.name}: a row for {topic} has more bytes than the topic takes",
            detail=_in_short(error),
            hint=f"derive smaller rows, or: headrace topic alter {topic} --set max.message.bytes=...",
        )
    if _GONE.search(text):
        kind, what = InputGone, "needs records that are no longer in the log"
    elif _CHANGED.search(text):
        kind, what = FlowChanged, "was changed in a way that its state cannot follow"
    elif _STATE.search(text):
        kind, what = StateDamaged, "cannot read its state"
    else:
        return FlowFailed(
            f"flow {flow.name} failed: {_in_short(error)}",
            detail=f"it is declared at {flow.place}" if flow.place else "",
            hint="see all of it with headrace run -v; after a change, the flow goes on with the batch that failed",
        )
    told = _in_short(error) + (f"; {standing}" if kind is StateDamaged and standing else "")
    return kind(f"flow {flow.name} {what}", detail=told, hint=rebuild_hint(flow.name))


def _in_short(error: BaseException) -> str:
    """The innermost cause, without the plan and the stack."""
    told = error.getMessage() if isinstance(error, PySparkException) else str(error)
    causes = _CAUSE.findall(str(error))
    if causes:
        name, message = causes[-1]
        return f"{name.rpartition('.')[2]}: {message}"[:_LONGEST]
    return ((told or str(error)).strip().splitlines() or [type(error).__name__])[0][:_LONGEST]
