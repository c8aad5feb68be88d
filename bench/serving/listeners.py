"""Many who follow a view over WebSockets, in one process that costs little; each is told all of it.

    python -m bench.serving.listeners TASK

It says ``ready`` when everybody has the first rows. Then it takes one line: from when to when a change must have been
due to count, and which is the last that comes; it waits until everybody has that one, and says how long the changes
took, from when they were due to when they were read. All that are told the same are told it by the same bytes, so
those are read as JSON once.
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
_KNOWN_MAX = 256
_LAST_S = 60.0
_PER_MS = 10
"""Spans are counted by the tenth of a millisecond."""


@dataclass(frozen=True, slots=True)
class _Task:
    port: int
    path: str
    clients: int


class _Row(msgspec.Struct):
    due_us: int


class _Told(msgspec.Struct):
    type: str
    rows: list[_Row] = []
    last: bool = False


_decode = msgspec.json.Decoder(_Told).decode


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
        said = b""
        while b"\r\n\r\n" not in said:
            said += self.socket.recv(4_096)
        if not said.startswith(b"HTTP/1.1 101 "):
            raise SystemExit(f"the server says: {said[:2_000].decode(errors='replace')}")
        self._rest = said.partition(b"\r\n\r\n")[2]
        self._send(_TEXT, _SUBSCRIBE)
        self.begun = False
        self.last_us = 0

    def _send(self, kind: int, payload: bytes) -> None:
        # The mask is nothing, so what is sent is what is meant.
        self.socket.sendall(bytes([kind, 0x80 | len(payload)]) + b"\0\0\0\0" + payload)

    def texts(self) -> list[bytes]:
        """All that are whole."""
        got = self.socket.recv(262_144)
        if not got:
            raise SystemExit("the server has ended a connection")
        rest = self._rest + got if self._rest else got
        found: list[bytes] = []
        at = 0
        while (frame := _frame(rest, at)) is not None:
            kind, begin, at = frame
            if kind == _TEXT:
                found.append(rest[begin:at])
            elif kind == _PING:
                self._send(_PONG, rest[begin:at])
            else:
                raise SystemExit(f"a frame of kind {kind:#x}: {rest[begin:at]!r}")
        self._rest = rest[at:]
        return found


def _frame(data: bytes, at: int) -> tuple[int, int, int] | None:
    """Its first byte, where its content begins, and where it ends; None if it is not whole."""
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
        for one in self._listeners:
            self._selector.register(one.socket, selectors.EVENT_READ, one)
        self._known: OrderedDict[bytes, _Frame] = OrderedDict()
        self._heard: list[tuple[int, _Frame]] = []

    def listen(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            for text in key.data.texts():
                self._note(key.data, text, time.monotonic_ns() // 1_000)

    def _note(self, listener: _Listener, text: bytes, now_us: int) -> None:
        frame = self._known.get(text)
        if frame is None:
            told = _decode(text)
            if told.type in ("reset", "bye"):
                raise SystemExit(f"somebody was not served: {text[:2_000]!r}")
            frame = self._known[text] = _Frame(told.type, [one.due_us for one in told.rows], len(text))
            if len(self._known) > _KNOWN_MAX:
                self._known.popitem(last=False)
        if frame.kind == "snapshot":
            listener.begun = True
        elif frame.kind == "changes" and frame.dues:
            listener.last_us = max(listener.last_us, *frame.dues)
            self._heard.append((now_us, frame))

    @property
    def begun(self) -> bool:
        return all(one.begun for one in self._listeners)

    def have(self, last_us: int) -> bool:
        return all(one.last_us >= last_us for one in self._listeners)

    def told(self, begin_us: int, end_us: int, count: int) -> dict[str, float]:
        """``count`` are the changes that everybody must have been told."""
        spans: Counter[int] = Counter()
        frames = size = 0
        for at_us, frame in self._heard:
            counting = [due for due in frame.dues if begin_us <= due < end_us]
            spans.update((at_us - due) * _PER_MS // 1_000 for due in counting)
            if counting:
                frames += 1
                size += frame.bytes
        if spans.total() != count * len(self._listeners):
            raise SystemExit(
                f"{spans.total()} changes were told, and not {count} to each of {len(self._listeners)}"
            )
        return {
            "p50_ms": _at_share(spans, 0.5),
            "p99_ms": _at_share(spans, 0.99),
            "frames": frames / len(self._listeners) / ((end_us - begin_us) / 1e6),
            "frame_bytes": size / frames,
        }


def _at_share(spans: Counter[int], share: float) -> float:
    left = int(spans.total() * share)
    for span, count in sorted(spans.items()):
        left -= count
        if left < 0:
            return (span + 1) / _PER_MS
    raise SystemExit("nothing was told")


def main() -> None:
    crowd = _Crowd(_Task(**json.loads(sys.argv[1])))
    deadline = time.monotonic() + _LAST_S
    while not crowd.begun:
        crowd.listen(0.1)
        if time.monotonic() > deadline:
            raise SystemExit("not everybody has got the first rows")
    print("ready", flush=True)
    asked: list[str] = []
    threading.Thread(target=lambda: asked.append(sys.stdin.readline()), daemon=True).start()
    while not asked:
        crowd.listen(0.1)
    begin_us, end_us, last_us, count = json.loads(asked[0])
    deadline = time.monotonic() + _LAST_S
    while not crowd.have(last_us):
        crowd.listen(0.1)
        if time.monotonic() > deadline:
            raise SystemExit("not everybody was told the last change")
    print(json.dumps(crowd.told(begin_us, end_us, count)))


if __name__ == "__main__":
    main()
