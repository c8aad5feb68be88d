"""X19, size lies: frames, arrays and texts that claim to be far larger than anything that comes.

Every case goes to a connection of its own, beside a good client; the broker has no login, so all of them come before
one. What must hold: the connection is closed without an answer; a batch that is larger than its topic allows gets error
10; where the claim is within the limits, nothing happens until the bytes come. The broker's memory never grows by more
than what was sent and 16 MB, and the good client is answered throughout.
"""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Iterator
from typing import NamedTuple

from bench.faults import calls
from bench.faults.batches import build_batch
from bench.faults.bystander import Bystander
from bench.faults.codec import Reader, int16, int32, string
from bench.faults.connection import Connection
from bench.faults.outcome import Outcome
from bench.faults.process import BrokerDied, BrokerProcess
from bench.faults.shape_sizes import shape_lies
from bench.faults.varints import uvarint
from bench.faults.workplace import workplace
from headrace.broker.handlers import OFFERED
from headrace.wire import Api

__all__ = ["UNPROTECTED", "cases", "run"]

FAULT = "X19"
UNPROTECTED = {"frame-limit": r"bytes cost \d+ MB", "element-limit": r"bytes cost \d+ MB"}

_GROWTH_MB_MAX = 16.0
_PRODUCE_MAX = 100 << 20
_OTHER_MAX = 4 << 20
_TOO_LARGE = 10
_WARM_REQUESTS = 300
_CLAIMS = 200
_TOPIC, _SMALL_TOPIC = "sizes", "small"
_SMALL_BYTES_MAX = 1_000


class Case(NamedTuple):
    name: str
    raw: bytes
    expected: str = "closed"
    """``closed`` without an answer; ``too large``, which is error 10; or ``open`` until more comes."""


def _head(api: int, version: int) -> bytes:
    return int16(api) + int16(version) + int32(1) + string("liar")


def _framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def cases(rng: random.Random) -> Iterator[Case]:
    """All that are known, with a few bytes of chance in each."""
    for size in (2**31 - 1, -1, -(2**31), _PRODUCE_MAX + 1):
        yield Case(f"a frame of {size}", struct.pack(">i", size) + rng.randbytes(rng.randint(0, 2000)))
    for api in sorted(OFFERED):
        if api is Api.PRODUCE:
            sent = struct.pack(">ih", _PRODUCE_MAX, 0) + bytes(rng.randint(0, 100_000))
            yield Case("a produce request of 100 MiB, of which little comes", sent, "open")
        else:
            yield Case(
                f"{api.name} of {_OTHER_MAX + 1}", struct.pack(">ih", _OTHER_MAX + 1, api) + bytes(100)
            )
            sent = struct.pack(">ih", _OTHER_MAX, api) + bytes(rng.randint(0, 10_000))
            yield Case(f"{api.name} of 4 MiB, of which little comes", sent, "open")
    for name, frame in shape_lies(rng):
        yield Case(name, _framed(frame))
    for count in (2**32 - 1, 2**31, 2**28):
        yield Case(f"{count} tagged fields", _framed(_head(3, 9) + uvarint(count)))
    yield Case("a varint without end", _framed(_head(3, 9) + b"\0" + b"\xff" * 40))
    for size in (2**15 - 1, -2, -(2**15)):
        yield Case(f"a client id of {size}", _framed(int16(3) + int16(1) + int32(1) + int16(size)))
    # Real bytes, each of which would become an object of hundreds.
    many = (_OTHER_MAX - 100) // 2
    yield Case(f"{many} empty names", _framed(_head(3, 1) + int32(many) + bytes(2 * many)))
    yield Case(f"{many} tags", _framed(_head(3, 9) + uvarint(many) + bytes(2 * many)))
    for topic, size in ((_SMALL_TOPIC, _SMALL_BYTES_MAX + 1), (_TOPIC, 1_100_000), (_TOPIC, 5_000_000)):
        batch = build_batch([rng.randbytes(size)], int(time.time() * 1000))
        produce = _head(0, 7) + calls.produce_body(topic, {0: batch})
        yield Case(f"a batch of {size} for {topic}", _framed(produce), "too large")


def run(
    seed: int, *, protected: bool = True, without: str = "frame-limit", share: int | None = None
) -> Outcome:
    """``share``: of so many cases; without, of all."""
    rng = random.Random(seed)
    outcome = Outcome(FAULT, seed)
    starter = [] if protected else ["--without", without]
    with (
        workplace(FAULT, seed, in_memory=True) as home,
        BrokerProcess(home, starter=starter, forked=True) as broker,
    ):
        broker.start()
        with Connection(broker.port) as connection:
            calls.create_topic(connection, _TOPIC, 1)
            calls.create_topic(connection, _SMALL_TOPIC, 1, {"max.message.bytes": str(_SMALL_BYTES_MAX)})
        bystander = Bystander(broker.port, pause_s=0.002)
        bystander.prepare()
        bystander.start()
        chosen = list(cases(rng))
        rng.shuffle(chosen)
        chosen = chosen[:share]
        try:
            # What the first good requests cost is not what a lie costs.
            bystander.wait_for(_WARM_REQUESTS)
            base_mb = broker.forget_peak()
            outcome.cases = len(chosen)
            sent_bytes = 0
            for case in chosen:
                before_mb = broker.forget_peak()
                _try(broker, case, outcome)
                sent_bytes += len(case.raw)
                peak_mb = broker.rss_mb("VmHWM")
                for what, size, grown in (
                    (case.name, len(case.raw), peak_mb - before_mb),
                    ("all until then", sent_bytes, peak_mb - base_mb),
                ):
                    if grown > _GROWTH_MB_MAX + size / (1 << 20):
                        outcome.problems.append(f"{what}: {size} bytes cost {grown:.0f} MB")
                if not protected and outcome.shows(UNPROTECTED[without]):
                    break
            if protected:
                _many_claims(broker, outcome)
            broker.expect_alive()
        except BrokerDied as died:
            outcome.problems.append(str(died))
        outcome.problems += bystander.finish(60.0 if protected else 5.0)
        outcome.problems += [f"the broker did not foresee:\n{trace}" for trace in broker.traces()]
        if protected and not list(broker.log_lines("bytes was announced")):
            outcome.problems.append("the log does not say that a frame was too large")
        outcome.figures["slowest_ms"] = bystander.slowest_s * 1000
        outcome.peak_rss_mb = broker.rss_mb("VmHWM")
    return outcome


def _try(broker: BrokerProcess, case: Case, outcome: Outcome) -> None:
    outcome.hits += 1
    heard = bytearray()
    is_closed = False
    with socket.create_connection(("127.0.0.1", broker.port), timeout=5) as connection:
        try:
            connection.sendall(case.raw)
            if case.expected == "open":
                connection.settimeout(0.01)
            while not _is_whole(heard) and (piece := connection.recv(1 << 16)):
                heard += piece
            is_closed = not _is_whole(heard)
        except TimeoutError:
            pass
        except OSError:
            is_closed = True
    found = "closed" if is_closed and not heard else "open" if not heard else _answer(bytes(heard))
    if found != case.expected:
        outcome.problems.append(f"{case.name}: {found}, and {case.expected} was due")


def _is_whole(heard: bytearray) -> bool:
    return len(heard) >= 4 and len(heard) - 4 >= int.from_bytes(heard[:4], "big")


def _answer(heard: bytes) -> str:
    """An answer to Produce that has error 10, or what it is instead."""
    try:
        reader = Reader(heard, 8)
        errors = [one.error for one in calls.read_produce_answer(reader)]
    except (ValueError, MemoryError):
        return f"an answer of {len(heard)} bytes"
    return "too large" if errors == [_TOO_LARGE] else f"errors {errors}"


def _many_claims(broker: BrokerProcess, outcome: Outcome) -> None:
    """Two hundred at once that each claim 100 MiB, within the limit, and send a little."""
    before = broker.forget_peak()
    sent = struct.pack(">ih", _PRODUCE_MAX, 0) + bytes(20_000)
    held = [socket.create_connection(("127.0.0.1", broker.port), timeout=10) for _ in range(_CLAIMS)]
    try:
        for connection in held:
            connection.sendall(sent)
            outcome.hits += 1
        time.sleep(0.3)
        grown = broker.rss_mb("VmHWM") - before
        allowed = _GROWTH_MB_MAX + _CLAIMS * len(sent) / (1 << 20)
        if grown > allowed:
            outcome.problems.append(f"{_CLAIMS} claims cost {grown:.0f} MB, {allowed:.0f} were allowed")
    finally:
        for connection in held:
            connection.close()
