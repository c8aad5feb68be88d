"""The one reader of a view's topic, in a thread of its own, for all who follow the view.

It outlasts a log that is gone for a while. It ends when what the store serves is of another epoch, or when the log has
lost what comes next: whoever follows must then begin with a snapshot.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable

from confluent_kafka import KafkaException

from headrace.clock import Clock
from headrace.errors import HeadraceError
from headrace.model.source import Sources
from headrace.serve.subscriptions.place import Place
from headrace.serve.subscriptions.source import Source
from headrace.serve.subscriptions.step import Step
from headrace.views.piece import LookAgain, Piece
from headrace.views.position import Standing

__all__ = ["Tail"]

_POLL_S = 0.2
_GLANCE_S = 5.0
_TIMEOUT_S = 5.0
_BACKOFF_S = (0.05, 0.1, 0.25, 0.5, 1.0)


class _Over(Exception):
    """There is nothing to go on with."""


class Tail:
    """``step`` and ``over`` are called in the thread; so is ``standing``, which asks the store."""

    def __init__(
        self,
        source: Source,
        clock: Clock,
        *,
        standing: Callable[[], Standing | None],
        step: Callable[[Step], None],
        over: Callable[[str], None],
        fault: Callable[[BaseException], None],
    ) -> None:
        cluster = dataclasses.replace(source.cluster, timeout_s=min(source.cluster.timeout_s, _TIMEOUT_S))
        self._source = dataclasses.replace(source, cluster=cluster)
        self._clock = clock
        self._standing = standing
        self._tell_step = step
        self._tell_over = over
        self._tell_fault = fault
        self._place: Place = source.epoch.place(source.standing.position)
        self._sources: Sources = dict(source.standing.position.sources)
        self._glanced = clock.steady()
        self._stop = threading.Event()
        self.trouble: str = ""
        """Why nothing comes at the moment."""
        self._thread = threading.Thread(target=self._run, name=f"tail {source.view.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Soon, and by itself: nobody waits for it."""
        self._stop.set()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    # In the thread

    def _run(self) -> None:
        tries = 0
        try:
            while not self._stop.is_set():
                before = self._place
                try:
                    self._follow()
                except LookAgain as error:
                    self.trouble = str(error)
                    self._expect_epoch()
                    self._expect_there()
                except HeadraceError as error:
                    if not error.retriable:
                        raise
                    self.trouble = error.message
                except (KafkaException, TimeoutError) as error:
                    self.trouble = str(error)
                tries = 0 if self._place != before else tries + 1
                self._stop.wait(_BACKOFF_S[min(tries, len(_BACKOFF_S) - 1)])
        except _Over as error:
            self._tell_over(str(error))
        except BaseException as error:
            self._tell_fault(error)

    def _follow(self) -> None:
        with contextlib.closing(self._source.open(self._place, self._sources)) as changelog:
            while not self._stop.is_set():
                piece = changelog.take(_POLL_S)
                self.trouble = ""
                if piece is not None:
                    self._note(piece)
                if self._clock.steady() - self._glanced >= _GLANCE_S:
                    self._glance()

    def _note(self, piece: Piece) -> None:
        batch = self._place.batch if piece.batch is None else piece.batch.batch
        progress_offset = self._place.progress_offset if piece.batch is None else piece.progress_offset
        after = Place(piece.offsets, batch, progress_offset, self._place.by_batch)
        step = Step(self._place, after, self._source.decoding.changes(piece.messages))
        self._place = after
        if piece.sources is not None:
            self._sources = piece.sources
        self._tell_step(step)

    # Looking around

    def _glance(self) -> None:
        """Now and then: a new topic of the same name, or more partitions, are not seen by reading."""
        epoch = self._source.epoch
        info = self._source.cluster.topic(epoch.topic)
        if info is None or (info.id, info.partitions) != (epoch.topic_id, epoch.partitions):
            raise LookAgain(f"topic {epoch.topic!r} is another")
        self._expect_epoch()
        self._glanced = self._clock.steady()

    def _expect_epoch(self) -> None:
        """A store that does not answer, or has nothing, says nothing about the log."""
        try:
            found = self._standing()
        except HeadraceError:
            return
        if found is not None and not self._source.epoch.has(found):
            generation = found.position.generation
            raise _Over(
                f"the view has swapped to generation {generation} of its flow"
                if generation != self._source.epoch.generation
                else "the view was rebuilt, with other columns or from another topic"
            )

    def _expect_there(self) -> None:
        """Raises if the log cannot give what comes next any more."""
        epoch, cluster = self._source.epoch, self._source.cluster
        try:
            info = cluster.topic(epoch.topic)
            if info is None or info.id != epoch.topic_id:
                return  # Until the store is of another one, there is nothing to say.
            if info.partitions != epoch.partitions:
                raise _Over(f"topic {epoch.topic!r} has {info.partitions} partitions now")
            starts, ends = cluster.starts(epoch.topic), cluster.ends(epoch.topic, committed=False)
        except HeadraceError:
            return
        for number, at in self._place.offsets.items():
            if at < starts.get(number, 0) or at > ends.get(number, at):
                raise _Over(f"partition {number} of topic {epoch.topic!r} does not have offset {at} any more")
