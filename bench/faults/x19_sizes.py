"""X19, size lies: frames, arrays and texts that claim to be far larger than anything that comes.

Every case goes to a connection of its own, beside a good client. What must hold: the connection is closed (or, where
the claim is within the limits, nothing happens until the bytes come), the broker's memory never grows by more than
16 MB beyond what was sent, and the good client is answered throughout.
"""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Iterator

from bench.faults.bystander import Bystander
from bench.faults.codec import int8, int16, int32, string
from bench.faults.outcome import Outcome
from bench.faults.process import BrokerDied, BrokerProcess
from bench.faults.varints import uvarint
from bench.faults.workplace import workplace

__all__ = ["UNPROTECTED", "cases", "run"]

FAULT = "X19"
UNPROTECTED = {"frame-limit": r"bytes cost \d+ MB", "element-limit": r"bytes cost \d+ MB"}

_GROWTH_MB_MAX = 16.0
_PRODUCE_MAX = 100 << 20
_OTHER_MAX = 4 << 20
_APIS = (*range(4), *range(8, 24), 32, 33, 35, 37, 42, 44, 47, 60, 75)
_HUGE = (2**31 - 1, -1, -(2**31), 2**30)

Case = tuple[str, bytes, bool]
"""What it is, the bytes that are sent, and whether the broker must hang up before more comes."""


def _head(api: int, version: int) -> bytes:
    return int16(api) + int16(version) + int32(1) + string("liar")


def _framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def cases(rng: random.Random) -> Iterator[Case]:
    """All that are known, with a few bytes of chance in each."""
    for size in (2**31 - 1, -1, -(2**31), _PRODUCE_MAX + 1):
        yield f"a frame of {size}", struct.pack(">i", size) + rng.randbytes(rng.randint(0, 2000)), True
    for api in _APIS:
        if api:
            yield f"API {api} of {_OTHER_MAX + 1}", struct.pack(">ih", _OTHER_MAX + 1, api) + bytes(100), True
        else:
            sent = struct.pack(">ih", _PRODUCE_MAX, 0) + bytes(rng.randint(0, 100_000))
            yield "a produce request of 100 MiB, of which little comes", sent, False
    for claim in _HUGE:
        # Produce 7: topics, partitions, bytes of records.
        start = _head(0, 7) + string(None) + int16(1) + int32(1000)
        yield f"{claim} topics of Produce", _framed(start + int32(claim)), True
        start += int32(1) + string("t")
        yield f"{claim} partitions of Produce", _framed(start + int32(claim) + bytes(50)), True
        if claim != -1:
            yield f"records of {claim}", _framed(start + int32(1) + int32(0) + int32(claim) + bytes(50)), True
        fetch = _head(1, 11) + int32(-1) + int32(0) + int32(1) + int32(1) + int8(0) + int32(0) + int32(-1)
        yield f"{claim} topics of Fetch", _framed(fetch + int32(claim)), True
        if claim != -1:
            # Null stands for all topics here.
            yield f"{claim} topics of Metadata", _framed(_head(3, 1) + int32(claim)), True
        yield f"{claim} topics to delete", _framed(_head(20, 1) + int32(claim) + bytes(8)), True
        join = _head(11, 5) + string("g") + int32(1) + int32(1) + string("") + string(None) + string("p")
        yield f"{claim} protocols", _framed(join + int32(claim) + bytes(20)), True
        yield f"a protocol of {claim}", _framed(join + int32(1) + string("x") + int32(claim)), claim != -1
        yield f"{claim} groups", _framed(_head(15, 1) + int32(claim)), True
    for count in (2**32 - 1, 2**31, 2**28):
        yield f"a compact array of {count}", _framed(_head(3, 9) + b"\0" + uvarint(count)), True
        yield f"a compact text of {count}", _framed(_head(3, 9) + b"\0\2" + uvarint(count)), True
        yield f"{count} tagged fields", _framed(_head(3, 9) + uvarint(count)), True
    yield "a varint without end", _framed(_head(3, 9) + b"\0" + b"\xff" * 40), True
    for size in (2**15 - 1, -2, -(2**15)):
        yield f"a client id of {size}", _framed(int16(3) + int16(1) + int32(1) + int16(size)), True
    # Real bytes, each of which would become an object of hundreds.
    many = (_OTHER_MAX - 100) // 2
    yield f"{many} empty names", _framed(_head(3, 1) + int32(many) + bytes(2 * many)), True
    yield f"{many} tags", _framed(_head(3, 9) + uvarint(many) + bytes(2 * many)), True


def run(seed: int, *, protected: bool = True, without: str = "frame-limit") -> Outcome:
    rng = random.Random(seed)
    outcome = Outcome(FAULT, seed)
    starter = [] if protected else ["--without", without]
    with (
        workplace(FAULT, seed, in_memory=True) as home,
        BrokerProcess(home, starter=starter, forked=True) as broker,
    ):
        broker.start()
        bystander = Bystander(broker.port, pause_s=0.002)
        bystander.prepare()
        bystander.start()
        chosen = list(cases(rng))
        rng.shuffle(chosen)
        try:
            # What only the first requests of a kind cost is not what a lie costs.
            for case in chosen[:20] if protected else ():
                _try(broker, case, outcome)
            outcome.hits = 0
            time.sleep(0.1)
            base_mb = broker.rss_mb("VmHWM")
            outcome.cases = len(chosen)
            for case in chosen:
                _try(broker, case, outcome)
                grown = broker.rss_mb("VmHWM") - base_mb
                if grown > _GROWTH_MB_MAX + len(case[1]) / (1 << 20):
                    outcome.problems.append(f"{case[0]}: {len(case[1])} bytes cost {grown:.0f} MB")
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
    name, raw, must_close = case
    outcome.hits += 1
    with socket.create_connection(("127.0.0.1", broker.port), timeout=5) as connection:
        try:
            connection.sendall(raw)
            if must_close:
                while connection.recv(4096):
                    pass
        except TimeoutError:
            if must_close:
                outcome.problems.append(f"{name}: the connection was not closed")
        except OSError:
            return  # It was closed before all was sent.


def _many_claims(broker: BrokerProcess, outcome: Outcome) -> None:
    """Two hundred at once that each claim 100 MiB, within the limit, and send a little."""
    before = broker.rss_mb("VmHWM")
    sent = struct.pack(">ih", _PRODUCE_MAX, 0) + bytes(20_000)
    held = [socket.create_connection(("127.0.0.1", broker.port), timeout=10) for _ in range(200)]
    try:
        for connection in held:
            connection.sendall(sent)
        time.sleep(0.3)
        grown = broker.rss_mb("VmHWM") - before
        allowed = _GROWTH_MB_MAX + 200 * len(sent) / (1 << 20)
        if grown > allowed:
            outcome.problems.append(f"200 claims cost {grown:.0f} MB, {allowed:.0f} were allowed")
    finally:
        for connection in held:
            connection.close()
