"""The base class of all engines. An engine executes one run of a flow, from its start to its first error or stop."""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod

from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from headrace.client.transactional_writer import TransactionalWriter
from headrace.flow.context import FlowContext
from headrace.flow.flow_state import FlowState
from headrace.flow.upstream import Upstream

__all__ = ["BATCH_S_MAX", "Engine"]

BATCH_S_MAX = 20.0
"""How long a stop waits for the current batch."""
_END_S_MAX = 20


class Engine(ABC):
    """``rows_max`` is the number of records that a batch may read, estimated from the size of the next records."""

    def __init__(
        self, context: FlowContext, state: FlowState, writer: TransactionalWriter, rows_max: int
    ) -> None:
        self.state = state
        self.error: BaseException | None = None
        self.too_large = False
        """Whether the last batch had far more bytes than allowed. If so, the next batches must read fewer records."""
        self.took_ms: float | None = None
        """How long the last batch took, from its plan to its commit; None for a real-time flow."""
        self.upstream = Upstream(
            context.cluster, context.app, context.flow, state.generation.inputs, is_kept=state.is_kept
        )
        self._context = context
        self._flow = context.flow
        self._compiled = context.compiled
        self._spark = context.spark
        self._cluster = context.cluster
        self._options = context.options
        self._writer = writer
        self._rows_max = rows_max
        self._query: StreamingQuery | None = None

    @property
    def query(self) -> StreamingQuery:
        assert self._query is not None, "the query exists between start and close"
        return self._query

    @property
    def query_name(self) -> str:
        return f"{self._flow.name}.g{self.state.generation.generation}"

    @property
    def is_idle(self) -> bool:
        """Whether no batch runs or follows before new records arrive. Valid only once all records are processed."""
        return True

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def poll(self, stop: threading.Event) -> None:
        """Do the work that is needed between batches. Called about ten times per second."""

    @property
    def is_busy(self) -> bool:
        """Whether a batch runs that a stop would wait for."""
        return False

    @abstractmethod
    def stop(self, patience_s: float = BATCH_S_MAX) -> None:
        """Wait up to ``patience_s`` for the current batch, then stop the query. An unfinished batch runs again at the
        next start.
        """

    @abstractmethod
    def plan(self, chars_max: int) -> str | None:
        """Return Spark's physical plan of the last batch, as text."""

    @abstractmethod
    def close(self) -> None: ...

    def wait_for_end(self) -> None:
        """Wait until Spark releases the name of the ended query, because the next query uses the same name."""
        with contextlib.suppress(PySparkException):
            self.query.awaitTermination(_END_S_MAX)
