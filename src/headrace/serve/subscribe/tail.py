"""Reads a view's topic in its own thread, for all subscribers of the view.

The tail retries during an outage of the log. It ends if the store is rebuilt from another source (a new epoch), or if
the log has deleted the next records. In both cases, subscribers must start again with a snapshot.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable

from confluent_kafka import KafkaException

from headrace.clock import Clock
from headrace.errors import HeadraceError
from headrace.follow.changelog import ChangeBatch, SourceChanged
from headrace.model.progress import Sources
from headrace.serve.subscribe.log_position import LogPosition, Step
from headrace.serve.subscribe.source import Source
from headrace.stores.position import ViewState

__all__ = ["Tail"]

_POLL_S = 0.2
_CHECK_EVERY_S = 5.0
_TIMEOUT_S = 5.0
_BACKOFF_S = (0.05, 0.1, 0.25, 0.5, 1.0)


class _EpochEnded(Exception):
    """The epoch has ended, so no more steps follow."""


class Tail:
    """Calls ``on_step``, ``on_end``, ``on_fault`` and ``read_state`` (which reads the store) in its own thread."""

    def __init__(
        self,
        source: Source,
        clock: Clock,
        *,
        read_state: Callable[[], ViewState | None],
        on_step: Callable[[Step], None],
        on_end: Callable[[str], None],
        on_fault: Callable[[BaseException], None],
    ) -> None:
        cluster = dataclasses.replace(source.cluster, timeout_s=min(source.cluster.timeout_s, _TIMEOUT_S))
        self._source = dataclasses.replace(source, cluster=cluster)
        self._clock = clock
        self._read_state = read_state
        self._on_step = on_step
        self._on_end = on_end
        self._on_fault = on_fault
        self._position: LogPosition = source.epoch.log_position(source.state.position)
        self._sources: Sources = dict(source.state.position.sources)
        self._checked_s = clock.steady()
        self._stop = threading.Event()
        self.failure: str = ""
        """Why reading currently fails; empty while reading works."""
        self._thread = threading.Thread(target=self._run, name=f"tail {source.view.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Signal the thread to end; ``join`` waits for it."""
        self._stop.set()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    # The rest runs in the thread.

    def _run(self) -> None:
        attempts = 0
        try:
            while not self._stop.is_set():
                position_before = self._position
                try:
                    self._follow()
                except SourceChanged as error:
                    self.failure = str(error)
                    self._check_epoch()
                    self._check_records()
                except HeadraceError as error:
                    if not error.retriable:
                        raise
                    self.failure = error.message
                except (KafkaException, TimeoutError) as error:
                    self.failure = str(error)
                attempts = 0 if self._position != position_before else attempts + 1
                self._stop.wait(_BACKOFF_S[min(attempts, len(_BACKOFF_S) - 1)])
        except _EpochEnded as error:
            self._on_end(str(error))
        except BaseException as error:
            self._on_fault(error)

    def _follow(self) -> None:
        with contextlib.closing(self._source.open(self._position, self._sources)) as changelog:
            while not self._stop.is_set():
                change_batch = changelog.poll(_POLL_S)
                self.failure = ""
                if change_batch is not None:
                    self._note(change_batch)
                if self._clock.steady() - self._checked_s >= _CHECK_EVERY_S:
                    self._check()

    def _note(self, change_batch: ChangeBatch) -> None:
        batch = self._position.batch if change_batch.batch is None else change_batch.batch.batch
        progress_offset = (
            self._position.progress_offset if change_batch.batch is None else change_batch.progress_offset
        )
        after = LogPosition(change_batch.offsets, batch, progress_offset, self._position.by_batch)
        step = Step(self._position, after, self._source.decoder.changes(change_batch.messages))
        self._position = after
        if change_batch.sources is not None:
            self._sources = change_batch.sources
        self._on_step(step)

    def _check(self) -> None:
        """Raise if the topic was created again or has new partitions. Reading alone does not detect this."""
        epoch = self._source.epoch
        info = self._source.cluster.topic(epoch.topic)
        if info is None or (info.id, info.partitions) != (epoch.topic_id, epoch.partitions):
            raise SourceChanged(f"topic {epoch.topic!r} was created again or has more partitions")
        self._check_epoch()
        self._checked_s = self._clock.steady()

    def _check_epoch(self) -> None:
        """Raise if the store's epoch has changed. If the store cannot be read or is empty, the epoch is unknown."""
        try:
            state = self._read_state()
        except HeadraceError:
            return
        if state is not None and not self._source.epoch.has(state):
            generation = state.position.generation
            raise _EpochEnded(
                f"the view has switched to generation {generation} of its flow"
                if generation != self._source.epoch.generation
                else "the view was rebuilt, with other columns or from another topic"
            )

    def _check_records(self) -> None:
        """Raise if the log has deleted the next records."""
        epoch, cluster = self._source.epoch, self._source.cluster
        try:
            info = cluster.topic(epoch.topic)
            if info is None or info.id != epoch.topic_id:
                return  # The view will be rebuilt, and the check of the epoch detects it.
            if info.partitions != epoch.partitions:
                raise _EpochEnded(f"topic {epoch.topic!r} now has {info.partitions} partitions")
            starts, ends = cluster.starts(epoch.topic), cluster.ends(epoch.topic, committed=False)
        except HeadraceError:
            return
        for number, offset in self._position.offsets.items():
            if offset < starts.get(number, 0) or offset > ends.get(number, offset):
                raise _EpochEnded(
                    f"partition {number} of topic {epoch.topic!r} no longer has offset {offset}"
                )
