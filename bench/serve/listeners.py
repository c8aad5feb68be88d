"""Many WebSocket subscribers of a view in one process. They cost little, and each receives everything.

    python -m bench.serve.listeners TASK

It prints ``ready`` when every subscriber has the first rows. Then it reads one line: a time range and the last change.
Only changes that are due in this range count. It waits until every subscriber has the last change, and prints how long
the changes took, from when they were due to when they were read. Equal messages have equal bytes, so each is decoded
once.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import threading
import time
from collections import Counter, OrderedDict
from dataclasses import dataclass

import msgspec

__all__ = ["main"]

_UPGRADE = (
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
_SUBSCRIBE = b'{"type":"subscribe"}'
_TEXT, _PING, _PONG = 0x81, 0x89, 0x8A
_DECODED_MAX = 256
_TIMEOUT_S = 60.0
_PER_MS = 10
"""Durations are counted in units of a tenth of a millisecond."""


@dataclass(frozen=True, slots=True)
class _Task:
    port: int
    path: str
    clients: int


class _Row(msgspec.Struct):
    due_us: int


class _Message(msgspec.Struct):
    type: str
    rows: list[_Row] = []
    last: bool = False


_decode = msgspec.json.Decoder(_Message).decode


@dataclass(frozen=True, slots=True)
class _Frame:
    kind: str
    dues: list[int]
    bytes: int


class _Listener:
    def __init__(self, task: _Task) -> None:
        self.socket = socket.create_connection(("127.0.0.1", task.port), timeout=60)
        head = f"GET {task.path} HTTP/1.1\r\nHost: 127.0.0.1:{task.port}\r\n{_UPGRADE}\r\n"
        self.socket.sendall(head.encode())
        received = b""
        while b"\r\n\r\n" not in received:
            received += self.socket.recv(4_096)
        if not received.startswith(b"HTTP/1.1 101 "):
            raise SystemExit(f"the server responded: {received[:2_000].decode(errors='replace')}")
        self._incomplete = received.partition(b"\r\n\r\n")[2]
        self._send(_TEXT, _SUBSCRIBE)
        self.has_snapshot = False
        self.last_us = 0

    def _send(self, kind: int, payload: bytes) -> None:
        # The mask is zero, so the sent bytes are the message.
        self.socket.sendall(bytes([kind, 0x80 | len(payload)]) + b"\0\0\0\0" + payload)

    def texts(self) -> list[bytes]:
        """Read, and return the contents of all complete frames."""
        data = self.socket.recv(262_144)
        if not data:
            raise SystemExit("the server closed a connection")
        rest = self._incomplete + data if self._incomplete else data
        texts: list[bytes] = []
        at = 0
        while (frame := _frame(rest, at)) is not None:
            kind, begin, at = frame
            if kind == _TEXT:
                texts.append(rest[begin:at])
            elif kind == _PING:
                self._send(_PONG, rest[begin:at])
            else:
                raise SystemExit(f"unexpected frame {kind:#x}: {rest[begin:at]!r}")
        self._incomplete = rest[at:]
        return texts


def _frame(data: bytes, at: int) -> tuple[int, int, int] | None:
    """Return the frame's first byte, and the start and end of its content, or None if the frame is incomplete."""
    if len(data) < at + 2:
        return None
    size, begin = data[at + 1], at + 2
    if size >= 126:
        begin += 2 if size == 126 else 8
        size = int.from_bytes(data[at + 2 : begin])
    return (data[at], begin, begin + size) if len(data) >= begin + size else None


class _Crowd:
    def __init__(self, task: _Task) -> None:
        self._selector = selectors.DefaultSelector()
        self._listeners = [_Listener(task) for _ in range(task.clients)]
        for listener in self._listeners:
            self._selector.register(listener.socket, selectors.EVENT_READ, listener)
        self._decoded: OrderedDict[bytes, _Frame] = OrderedDict()
        self._received: list[tuple[int, _Frame]] = []

    def listen(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            for text in key.data.texts():
                self._record(key.data, text, time.monotonic_ns() // 1_000)

    def _record(self, listener: _Listener, text: bytes, now_us: int) -> None:
        frame = self._decoded.get(text)
        if frame is None:
            message = _decode(text)
            if message.type in ("reset", "bye"):
                raise SystemExit(f"a subscriber was refused: {text[:2_000]!r}")
            frame = self._decoded[text] = _Frame(
                message.type, [row.due_us for row in message.rows], len(text)
            )
            if len(self._decoded) > _DECODED_MAX:
                self._decoded.popitem(last=False)
        if frame.kind == "snapshot":
            listener.has_snapshot = True
        elif frame.kind == "changes" and frame.dues:
            listener.last_us = max(listener.last_us, *frame.dues)
            self._received.append((now_us, frame))

    @property
    def all_have_snapshots(self) -> bool:
        return all(listener.has_snapshot for listener in self._listeners)

    def all_have_received(self, last_us: int) -> bool:
        return all(listener.last_us >= last_us for listener in self._listeners)

    def figures(self, begin_us: int, end_us: int, count: int) -> dict[str, float]:
        """``count`` is the number of changes that every subscriber must have received."""
        spans: Counter[int] = Counter()
        frames = size = 0
        for at_us, frame in self._received:
            counted_dues = [due for due in frame.dues if begin_us <= due < end_us]
            spans.update((at_us - due) * _PER_MS // 1_000 for due in counted_dues)
            if counted_dues:
                frames += 1
                size += frame.bytes
        if spans.total() != count * len(self._listeners):
            raise SystemExit(
                f"{spans.total()} changes arrived instead of {count} at each of {len(self._listeners)} subscribers"
            )
        return {
            "p50_ms": _percentile(spans, 0.5),
            "p99_ms": _percentile(spans, 0.99),
            "frames": frames / len(self._listeners) / ((end_us - begin_us) / 1e6),
            "frame_bytes": size / frames,
        }


def _percentile(spans: Counter[int], share: float) -> float:
    remaining = int(spans.total() * share)
    for span, count in sorted(spans.items()):
        remaining -= count
        if remaining < 0:
            return (span + 1) / _PER_MS
    raise SystemExit("no change arrived")


def main() -> None:
    crowd = _Crowd(_Task(**json.loads(sys.argv[1])))
    deadline = time.monotonic() + _TIMEOUT_S
    while not crowd.all_have_snapshots:
        crowd.listen(0.1)
        if time.monotonic() > deadline:
            raise SystemExit("some subscribers did not receive the first rows")
    print("ready", flush=True)
    stdin_lines: list[str] = []
    threading.Thread(target=lambda: stdin_lines.append(sys.stdin.readline()), daemon=True).start()
    while not stdin_lines:
        crowd.listen(0.1)
    begin_us, end_us, last_us, count = json.loads(stdin_lines[0])
    deadline = time.monotonic() + _TIMEOUT_S
    while not crowd.all_have_received(last_us):
        crowd.listen(0.1)
        if time.monotonic() > deadline:
            raise SystemExit("some subscribers did not receive the last change")
    print(json.dumps(crowd.figures(begin_us, end_us, count)))


if __name__ == "__main__":
    main()
