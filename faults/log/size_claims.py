"""Fault X19, false sizes: frames, arrays and strings that claim to be far larger than the bytes that follow.

Every case has its own connection, beside a well-behaved client. The broker requires no login, so any client could send
these requests. Expected: the broker closes the connection without a response; a batch larger than its topic allows gets
error 10; a claim within the limits has no effect until its bytes arrive. The broker's memory never grows by more than
the sent bytes plus 16 MB, and the well-behaved client is served during the whole run.
"""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Iterator
from typing import NamedTuple

from faults.log.bystander import Bystander
from faults.outcome import Outcome
from faults.protocol import calls
from faults.protocol.batches import build_batch
from faults.protocol.codec import Reader, int16, int32, string, uvarint
from faults.protocol.connection import Connection
from faults.protocol.shape_sizes import false_sizes
from faults.run_directory import run_directory
from faults.servers.broker_process import BrokerDied, BrokerProcess
from headrace.broker.handlers import SUPPORTED_APIS
from headrace.wire import Api

__all__ = ["UNPROTECTED", "cases", "run"]

FAULT = "X19"
UNPROTECTED = {"frame-limit": r"bytes cost \d+ MB", "element-limit": r"bytes cost \d+ MB"}

_GROWTH_MB_MAX = 16.0
_PRODUCE_MAX = 100 << 20
_OTHER_MAX = 4 << 20
_TOO_LARGE = 10
_WARM_UP_REQUESTS = 300
_CLAIMS = 200
_TOPIC, _SMALL_TOPIC = "sizes", "small"
_SMALL_BYTES_MAX = 1_000


class Case(NamedTuple):
    name: str
    raw: bytes
    expected: str = "closed"
    """The expected outcome: ``closed`` without a response, ``too large`` (error 10), or ``open`` until more bytes
    arrive.
    """


def _head(api: int, version: int) -> bytes:
    return int16(api) + int16(version) + int32(1) + string("liar")


def _framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def cases(rng: random.Random) -> Iterator[Case]:
    """Yield all cases, each with a few random bytes."""
    for size in (2**31 - 1, -1, -(2**31), _PRODUCE_MAX + 1):
        yield Case(f"a frame of {size}", struct.pack(">i", size) + rng.randbytes(rng.randint(0, 2000)))
    for api in sorted(SUPPORTED_APIS):
        if api is Api.PRODUCE:
            sent = struct.pack(">ih", _PRODUCE_MAX, 0) + bytes(rng.randint(0, 100_000))
            yield Case("a produce request of 100 MiB, of which few bytes are sent", sent, "open")
        else:
            yield Case(
                f"{api.name} of {_OTHER_MAX + 1}", struct.pack(">ih", _OTHER_MAX + 1, api) + bytes(100)
            )
            sent = struct.pack(">ih", _OTHER_MAX, api) + bytes(rng.randint(0, 10_000))
            yield Case(f"{api.name} of 4 MiB, of which few bytes are sent", sent, "open")
    for name, frame in false_sizes(rng):
        yield Case(name, _framed(frame))
    for count in (2**32 - 1, 2**31, 2**28):
        yield Case(f"{count} tagged fields", _framed(_head(3, 9) + uvarint(count)))
    yield Case("a varint without end", _framed(_head(3, 9) + b"\0" + b"\xff" * 40))
    for size in (2**15 - 1, -2, -(2**15)):
        yield Case(f"a client id of {size}", _framed(int16(3) + int16(1) + int32(1) + int16(size)))
    # These requests are complete. Each element of two bytes would become a Python object of hundreds of bytes.
    count = (_OTHER_MAX - 100) // 2
    yield Case(f"{count} empty names", _framed(_head(3, 1) + int32(count) + bytes(2 * count)))
    yield Case(f"{count} tags", _framed(_head(3, 9) + uvarint(count) + bytes(2 * count)))
    for topic, size in ((_SMALL_TOPIC, _SMALL_BYTES_MAX + 1), (_TOPIC, 1_100_000), (_TOPIC, 5_000_000)):
        batch = build_batch([rng.randbytes(size)], int(time.time() * 1000))
        produce = _head(0, 7) + calls.produce_body(topic, {0: batch})
        yield Case(f"a batch of {size} for {topic}", _framed(produce), "too large")


def run(
    seed: int, *, protected: bool = True, without: str = "frame-limit", cases_max: int | None = None
) -> Outcome:
    """``cases_max`` limits the number of cases; None means all."""
    rng = random.Random(seed)
    outcome = Outcome(FAULT, seed)
    starter_arguments = [] if protected else ["--without", without]
    with (
        run_directory(FAULT, seed, in_memory=True) as home,
        BrokerProcess(home, starter=starter_arguments, forked=True) as broker,
    ):
        broker.start()
        with Connection(broker.port) as connection:
            calls.create_topic(connection, _TOPIC, 1)
            calls.create_topic(connection, _SMALL_TOPIC, 1, {"max.message.bytes": str(_SMALL_BYTES_MAX)})
        bystander = Bystander(broker.port, pause_s=0.002)
        bystander.prepare()
        bystander.start()
        selected_cases = list(cases(rng))
        rng.shuffle(selected_cases)
        selected_cases = selected_cases[:cases_max]
        try:
            # Do not count the memory that the first good requests take.
            bystander.wait_for(_WARM_UP_REQUESTS)
            base_mb = broker.reset_peak_mb()
            outcome.cases = len(selected_cases)
            sent_bytes = 0
            for case in selected_cases:
                before_mb = broker.reset_peak_mb()
                _run_case(broker, case, outcome)
                sent_bytes += len(case.raw)
                peak_mb = broker.rss_mb("VmHWM")
                for description, size, growth_mb in (
                    (case.name, len(case.raw), peak_mb - before_mb),
                    ("all cases so far", sent_bytes, peak_mb - base_mb),
                ):
                    if growth_mb > _GROWTH_MB_MAX + size / (1 << 20):
                        outcome.problems.append(f"{description}: {size} bytes cost {growth_mb:.0f} MB")
                if not protected and outcome.has_finding(UNPROTECTED[without]):
                    break
            if protected:
                _many_claims(broker, outcome)
            broker.expect_alive()
        except BrokerDied as died:
            outcome.problems.append(str(died))
        outcome.problems += bystander.finish(60.0 if protected else 5.0)
        outcome.problems += [
            f"the broker logged an unexpected exception:\n{trace}" for trace in broker.unexpected_exceptions()
        ]
        if protected and not list(broker.log_lines("invalid frame size")):
            outcome.problems.append("the broker did not log that a frame was too large")
        outcome.figures["slowest_ms"] = bystander.slowest_s * 1000
        outcome.peak_rss_mb = broker.rss_mb("VmHWM")
    return outcome


def _run_case(broker: BrokerProcess, case: Case, outcome: Outcome) -> None:
    outcome.hits += 1
    received = bytearray()
    is_closed = False
    with socket.create_connection(("127.0.0.1", broker.port), timeout=5) as connection:
        try:
            connection.sendall(case.raw)
            if case.expected == "open":
                connection.settimeout(0.01)
            while not _is_whole(received) and (piece := connection.recv(1 << 16)):
                received += piece
            is_closed = not _is_whole(received)
        except TimeoutError:
            pass
        except OSError:
            is_closed = True
    outcome_text = (
        "closed" if is_closed and not received else "open" if not received else _answer(bytes(received))
    )
    if outcome_text != case.expected:
        outcome.problems.append(f"{case.name}: {outcome_text} instead of {case.expected}")


def _is_whole(received: bytearray) -> bool:
    return len(received) >= 4 and len(received) - 4 >= int.from_bytes(received[:4], "big")


def _answer(received: bytes) -> str:
    """Classify a response: ``too large`` if it is a Produce response with error 10, otherwise a description."""
    try:
        reader = Reader(received, 8)
        errors = [response.error for response in calls.read_produce_answer(reader)]
    except (ValueError, MemoryError):
        return f"a response of {len(received)} bytes"
    return "too large" if errors == [_TOO_LARGE] else f"errors {errors}"


def _many_claims(broker: BrokerProcess, outcome: Outcome) -> None:
    """Open two hundred connections that each claim 100 MiB, which is within the limit, and send only a few bytes."""
    before = broker.reset_peak_mb()
    sent = struct.pack(">ih", _PRODUCE_MAX, 0) + bytes(20_000)
    connections = [socket.create_connection(("127.0.0.1", broker.port), timeout=10) for _ in range(_CLAIMS)]
    try:
        for connection in connections:
            connection.sendall(sent)
            outcome.hits += 1
        time.sleep(0.3)
        growth_mb = broker.rss_mb("VmHWM") - before
        allowed = _GROWTH_MB_MAX + _CLAIMS * len(sent) / (1 << 20)
        if growth_mb > allowed:
            outcome.problems.append(
                f"{_CLAIMS} claims cost {growth_mb:.0f} MB, but only {allowed:.0f} MB are allowed"
            )
    finally:
        for connection in connections:
            connection.close()
