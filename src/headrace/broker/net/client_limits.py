"""Protects the broker from clients that use too many resources: memory accounts, timers, and rate-limited log lines."""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
from collections import Counter
from typing import Generic, Protocol, TypeVar

from headrace.broker.limits import BrokerLimits
from headrace.clock import Clock

__all__ = ["Account", "Holder", "Notices", "SlowClientTimer", "discard_unsent_on_close", "enable_keep_alive"]

_log = logging.getLogger("headrace.broker")
_BURST = 10
_PERIOD_S = 10.0


class Holder(Protocol):
    def evict(self, reason: str) -> None:
        """Close at once and release all memory."""


H = TypeVar("H", bound=Holder)


class Account(Generic[H]):
    """Counts the memory that all clients together use, and evicts slow clients above the limit.

    One account counts requests that are incomplete or not handled yet. Another counts responses that clients have not
    read. A fast client uses memory only for milliseconds, so the client that has used memory for longest is the
    slowest. Above its limit, the account evicts that client, then the next, until the total is within the limit.

    Invariant: ``total`` is the sum over all holders. The holders are in the order in which they began to use memory.
    """

    def __init__(self, purpose: str, bytes_max: int) -> None:
        self.total = 0
        self.peak = 0
        self.evicted = 0
        self.bytes_max = bytes_max
        self._purpose = purpose
        self._used_bytes: dict[H, int] = {}

    def set_usage(self, holder: H, size: int) -> None:
        """Set the bytes that ``holder`` uses in total. 0 removes the holder."""
        previous = self._used_bytes.get(holder, 0)
        if size == previous:
            return
        self.total += size - previous
        if size:
            self._used_bytes[holder] = size
        else:
            del self._used_bytes[holder]
        if self.total > self.peak:
            self.peak = self.total
        while self.total > self.bytes_max and self._used_bytes:
            slowest = next(iter(self._used_bytes))
            used_bytes = self._used_bytes[slowest]
            self.evicted += 1
            # Remove the holder before it is evicted, because eviction can call this method again.
            self.total -= self._used_bytes.pop(slowest)
            slowest.evict(
                f"all clients together use more than {self.bytes_max} bytes for {self._purpose}, and this client has"
                f" used memory for longest (now {used_bytes} bytes)"
            )

    def share(self) -> int:
        """Return how many bytes one more holder can use without causing an eviction."""
        return max(0, self.bytes_max - self.total) // 4


# With these values, the kernel detects a dead peer within two minutes. Some systems do not have all options.
_KEEP_ALIVE = (
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 60),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 15),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 4),
)


class SlowClientTimer:
    """Watches one direction of a connection: the client sends the rest of a request, or reads responses.

    In each period, the client must finish, or transfer bytes at the minimum rate. So a slow connection stays open, but
    a client that sends single bytes is disconnected. The timer does not use the average rate since the beginning,
    because the kernel buffers megabytes at once even for a client that never reads.
    """

    __slots__ = ("_transferred_before", "since")

    def __init__(self) -> None:
        self.since: float | None = None
        self._transferred_before = 0

    def start(self, now: float, transferred: int = 0) -> None:
        """Start a period at ``now``. ``transferred`` is the number of bytes that the client has transferred before."""
        self.since = now
        self._transferred_before = transferred

    def stop(self) -> None:
        self.since = None

    def postpone(self, by_s: float) -> None:
        """Extend the period by ``by_s``, because the broker did not run for that long."""
        if self.since is not None:
            self.since += by_s

    def expired(self, now: float, transferred: int, limits: BrokerLimits) -> str | None:
        """Return the client's progress as text if the client was too slow, else ``None``."""
        if self.since is None:
            return None
        period_s = limits.slow_ms_max / 1000
        waited_s, transferred_since = now - self.since, transferred - self._transferred_before
        if waited_s <= period_s:
            return None
        if transferred_since >= period_s * limits.slow_bytes_per_s_min:
            self.start(now, transferred)
            return None
        return f"{transferred_since} bytes in {waited_s:.1f} s"


def enable_keep_alive(connected: socket.socket) -> None:
    """Let the kernel send TCP keep-alive probes to a silent peer."""
    for level, name, value in _KEEP_ALIVE:
        if hasattr(socket, name):
            connected.setsockopt(level, getattr(socket, name), value)


def discard_unsent_on_close(connected: socket.socket) -> None:
    """Discard unsent bytes when the socket closes. Otherwise the kernel stores them for a peer that never reads."""
    with contextlib.suppress(OSError):  # The socket may be closed already.
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class Notices:
    """Logs clients that violate the protocol or exceed a limit, at a limited rate.

    An event has a fixed name (such as ``oversized-frame``), a sentence, and values. Each event name gets at most ten
    log lines in ten seconds. The next line reports how many were suppressed. The counters include suppressed events.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._log_times: dict[str, list[float]] = {}
        self._suppressed: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        """Closed connections by event name, including suppressed events."""
        self.limited: Counter[str] = Counter()
        """Requests that were refused or shortened because of a limit, by event name, including suppressed events."""

    def connection_closed(self, event: str, text: str, values: dict[str, object] | None = None) -> None:
        """Count and log a connection that the broker closed. ``event`` is one of a few fixed names."""
        self.counts[event] += 1
        self._write(event, text, values)

    def request_limited(self, event: str, text: str, values: dict[str, object] | None = None) -> None:
        """Count and log a request that was refused, or got a partial response, because of a limit."""
        self.limited[event] += 1
        self._write(event, text, values)

    def _write(self, event: str, text: str, values: dict[str, object] | None) -> None:
        now = self._clock.steady()
        recent = self._log_times.setdefault(event, [])
        while recent and now - recent[0] >= _PERIOD_S:
            recent.pop(0)
        if len(recent) >= _BURST:
            self._suppressed[event] += 1
            return
        recent.append(now)
        values = dict(values or {})
        suppressed = self._suppressed.pop(event, 0)
        if suppressed:
            text += f" ({suppressed} similar events were not logged)"
            values["not_logged"] = suppressed
        _log.warning("%s", text, extra={"event": event, "values": values})
