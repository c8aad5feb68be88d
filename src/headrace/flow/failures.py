"""Explains an error of Spark: the matching Headrace error, whether a retry can help, and the user's line that caused
it.

An error in the flow's function has a traceback in this process. An error in a function that Spark calls for each row
happens in a Spark worker, and the error message contains the traceback as text.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator
from pathlib import Path

from pyspark.errors import PySparkException

from headrace.errors import HeadraceError
from headrace.flow.errors import (
    FlowChanged,
    FlowFailed,
    InputDeleted,
    RowTooLarge,
    StateDamaged,
    rebuild_hint,
)
from headrace.model.declarations import Flow
from headrace.model.errors import AppError, SourceLocation

__all__ = ["blame", "explain", "is_retriable"]

# The log is unreachable or starting: Spark's connector fails after a timeout, and the runner starts the flow again.
_RETRIABLE = re.compile(
    r"TimeoutException|DisconnectException|Failed to construct kafka|COORDINATOR_(NOT_AVAILABLE|LOAD)"
    r"|NOT_LEADER_OR_FOLLOWER|NetworkException|Connection refused|UnknownTopicOrPartitionException"
    # Partitions were added after Headrace listed them and before the query started.
    r"|must specify all TopicPartitions"
    r"|(?:Fenced|Unknown)LeaderEpochException|LEADER_NOT_AVAILABLE|BROKER_NOT_AVAILABLE|TIMED_OUT|CONCURRENT_STREAM_LOG_UPDATE"
)
_DELETED = re.compile(
    r"KAFKA_DATA_LOSS|OffsetOutOfRange|offsets? (was|were) changed|Some data may have been lost"
)
_STATE_DAMAGED = re.compile(
    r"CANNOT_LOAD_STATE_STORE|StateStoreException|FAILED_TO_LOAD_STATE|CANNOT_READ_STATE|\.delta does not exist"
    r"|MISSING_STATE_DIRECTORY|Failed to read log file|Incomplete log file|ChecksumException"
)
_CHANGED = re.compile(
    r"STATE_STORE_\w*(NOT_COMPATIBLE|MISMATCH|SCHEMA)|StateSchemaNotCompatible|STATEFUL_OPERATOR_NOT_MATCH"
    r"|STREAMING_STATEFUL_OPERATOR_NOT_MATCH|INVALID_STREAMING_\w+|STATE_STORE_OPERATOR"
)
_ROW_TOO_LARGE = re.compile(r"RecordTooLargeException")
_CAUSE = re.compile(r"(?:Caused by: |^)([\w.$]+(?:Exception|Error)): ([^\n]*)", re.MULTILINE)
_SUMMARY_CHARS_MAX = 600
_TRACE_LINE = re.compile(r'File "([^"\n]{1,4096})", line (\d{1,9})')
_TEXT_MAX = 200_000
_CAUSES_MAX = 10


def is_retriable(error: BaseException) -> bool:
    """Whether starting the flow again after a pause can succeed."""
    if isinstance(error, HeadraceError):
        return error.retriable
    message = str(error)
    return not _DELETED.search(message) and _RETRIABLE.search(message) is not None


def explain(flow: Flow, error: BaseException, position: str = "", output: str = "") -> HeadraceError:
    """``position`` describes the flow's checkpoint and last progress. ``output`` is the log name of its topic."""
    if isinstance(error, HeadraceError):
        return error
    text = str(error)
    kind: type[HeadraceError]
    if _ROW_TOO_LARGE.search(text):
        topic = output or flow.writes.name
        return RowTooLarge(
            f"flow {flow.name}: a row for topic {topic} is larger than the topic allows",
            detail=_summary(error),
            hint=f"derive smaller rows, or: headrace topic alter {topic} --set max.message.bytes=...",
        )
    if _DELETED.search(text):
        kind, problem = InputDeleted, "needs records that were deleted from the log"
    elif _CHANGED.search(text):
        kind, problem = FlowChanged, "was changed, so its state is not compatible"
    elif _STATE_DAMAGED.search(text):
        kind, problem = StateDamaged, "cannot read its state"
    else:
        return FlowFailed(
            f"flow {flow.name} failed: {_summary(error)}",
            detail=f"the flow is declared at {flow.location}" if flow.location else "",
            hint="run headrace run -v to see the whole error; after a fix, the flow continues with the failed batch",
        )
    message = _summary(error) + (f"; {position}" if kind is StateDamaged and position else "")
    return kind(f"flow {flow.name} {problem}", detail=message, hint=rebuild_hint(flow.name))


def _summary(error: BaseException) -> str:
    """Return the innermost cause, without plan and stack trace."""
    message = error.getMessage() if isinstance(error, PySparkException) else str(error)
    causes = _CAUSE.findall(str(error))
    if causes:
        name, message = causes[-1]
        return f"{name.rpartition('.')[2]}: {message}"[:_SUMMARY_CHARS_MAX]
    return ((message or str(error)).strip().splitlines() or [type(error).__name__])[0][:_SUMMARY_CHARS_MAX]


def blame(flow: Flow, error: BaseException) -> SourceLocation | None:
    """Return the innermost line in the flow's file or directory; otherwise the line that declares the flow."""
    if isinstance(error, AppError) and error.location is not None:
        return error.location
    if flow.location is None:
        return None
    all_lines = [line for cause in _causes(error) for line in _lines(cause)]
    declared = flow.location
    user_lines = [line for line in all_lines if line.file == declared.file]
    user_lines = user_lines or [line for line in all_lines if _is_in_folder_of(declared.file, line.file)]
    return user_lines[-1] if user_lines else declared


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes."""
    cause: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__ or cause.__context__


def _lines(error: BaseException) -> Iterator[SourceLocation]:
    for frame in traceback.extract_tb(error.__traceback__):
        yield SourceLocation(frame.filename, frame.lineno or 0)
    for file, line in _TRACE_LINE.findall(str(error)[:_TEXT_MAX]):
        yield SourceLocation(file, int(line))


def _is_in_folder_of(file: str, other: str) -> bool:
    """Whether ``other`` is in the directory of ``file`` or below, and is not an installed package."""
    folder = str(Path(file).parent) + os.sep
    return other.startswith(folder) and "site-packages" not in other[len(folder) :]
