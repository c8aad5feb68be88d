"""Steps of a view as they come, for callers that block."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator
from types import TracebackType
from typing import Generic, Self, TypeVar

from headrace.remote.change import Change
from headrace.remote.errors import RemoteError
from headrace.remote.subscription import Ended, Subscription
from headrace.remote.transport import Stream, Transport

__all__ = ["Changes"]

R = TypeVar("R")


class _Line(Generic[R]):
    """What the steps come over. Not the iterator itself: that would hold itself, and outlive its last user."""

    def __init__(self, transport: Transport, subscription: Subscription[R]) -> None:
        self.transport = transport
        self.subscription = subscription
        self.over = threading.Event()
        self.stream: Stream | None = None

    def stop(self) -> None:
        self.over.set()
        stream = self.stream
        if stream is not None:
            stream.shut()


class Changes(Generic[R]):
    """``for change in changes``, for ever: until ``close``, which any thread may call, or until the remote is closed.

    One thread iterates. A step counts as taken when the next one is asked for; ``cursor`` is behind the last such.
    """

    def __init__(self, transport: Transport, subscription: Subscription[R]) -> None:
        self._line = _Line(transport, subscription)
        self._steps = _steps(self._line)
        transport.goes_on(self._line)

    @property
    def cursor(self) -> str | None:
        return self._line.subscription.cursor

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Change[R]:
        return next(self._steps)

    def close(self) -> None:
        self._line.stop()
        # A thread that is in the middle of it ends by itself.
        with contextlib.suppress(ValueError):
            self._steps.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _steps(line: _Line[R]) -> Generator[Change[R], None, None]:
    while not line.over.is_set():
        trouble: Exception | None = None
        try:
            with line.transport.stream(line.subscription.request()) as line.stream:
                if line.over.is_set():
                    return
                for part in line.stream.parts:
                    yield from line.subscription.take(part)
        except (RemoteError, Ended) as error:
            trouble = error
        finally:
            line.stream = None
        if not line.over.is_set():
            line.over.wait(line.subscription.broken(trouble))
