"""X20, malformed frames: every API in every version, cut short, bent, or made of nothing but chance.

The frames come from two sources: requests made up from the protocol's shapes, and real traffic of a stock client. They
are broken in ways that lengths, counts and numbers suffer from. Two stages, each beside a good client:

    nothing may change     frames that cannot be requests, and frames of APIs that change nothing, however bent. The
                           whole data directory is the same afterwards, by its hash
    anything may be meant  frames of all APIs, bent: some are still requests, and are done. But a topic that none of
                           them names keeps its files to the last byte

To each the broker answers with whole frames that carry the request's number, or hangs up; it foresees all of them,
goes on serving, and stops cleanly.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import socket
import struct
import time
from pathlib import Path

from bench.faults import calls
from bench.faults.batches import Batch, build_batch, parse_batches
from bench.faults.bystander import Bystander
from bench.faults.connection import Connection
from bench.faults.outcome import Outcome
from bench.faults.process import BrokerDied, BrokerProcess
from bench.faults.recording import recorded_frames
from bench.faults.workplace import workplace
from headrace.wire import Api, encode_request
from tests.unit.wire.samples import sample, stable_pairs

__all__ = ["CASES", "UNPROTECTED", "run"]

FAULT = "X20"
UNPROTECTED = {"malformed-check": r"did not foresee"}
CASES = 100

_READING = {
    *(Api.FETCH, Api.LIST_OFFSETS, Api.METADATA, Api.OFFSET_FETCH, Api.FIND_COORDINATOR, Api.HEARTBEAT),
    *(
        Api.DESCRIBE_GROUPS,
        Api.LIST_GROUPS,
        Api.API_VERSIONS,
        Api.OFFSET_FOR_LEADER_EPOCH,
        Api.DESCRIBE_CONFIGS,
    ),
    *(Api.DESCRIBE_LOG_DIRS, Api.DESCRIBE_CLUSTER, Api.DESCRIBE_TOPIC_PARTITIONS, Api.DESCRIBE_PRODUCERS),
    *(Api.DESCRIBE_TRANSACTIONS, Api.LIST_TRANSACTIONS),
}
# Their answers may wait for other members for as long as the request says.
_WAITING = {Api.JOIN_GROUP, Api.SYNC_GROUP}
_EDGES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
_KEPT = 50


def run(
    seed: int, *, protected: bool = True, without: str = "malformed-check", cases: int = CASES
) -> Outcome:
    rng = random.Random(seed)
    outcome = Outcome(FAULT, seed, cases=cases)
    starter = [] if protected else ["--without", without]
    with (
        workplace(FAULT, seed, in_memory=True) as home,
        BrokerProcess(home, starter=starter, forked=True, options=["--no-auto-create-topics"]) as broker,
    ):
        broker.start()
        # A name that no bent request comes upon.
        kept = f"kept-{rng.randbytes(16).hex()}"
        try:
            _keep(broker.port, kept)
            _stage(broker, rng, outcome, cases // 2, changes=False)
            files = _topic_files(broker, kept)
            _stage(broker, rng, outcome, cases - cases // 2, changes=True)
            if _topic_files(broker, kept) != files:
                outcome.problems.append("the files of a topic that nobody named have changed")
            _expect_kept(broker.port, kept, outcome, "at the end")
            if broker.stop():
                outcome.problems.append("the broker did not stop cleanly")
            broker.start()
            _expect_kept(broker.port, kept, outcome, "after a restart")
        except BrokerDied as died:
            outcome.problems.append(str(died))
        outcome.problems += [f"the broker did not foresee:\n{trace}" for trace in broker.traces()]
        outcome.peak_rss_mb = max(broker.peak_rss_mb, broker.rss_mb("VmHWM"))
    return outcome


def _stage(broker: BrokerProcess, rng: random.Random, outcome: Outcome, cases: int, *, changes: bool) -> None:
    bystander = Bystander(broker.port, f"bystander-{changes}", pause_s=0.002, writes=changes)
    bystander.prepare()
    before = "" if changes else _settled_hash(broker.data)
    bystander.start()
    for _ in range(cases):
        frame, api, is_request = _bent_frame(rng, changes=changes)
        outcome.hits += 1
        problem = _sent(broker.port, frame, api, is_request)
        if problem:
            outcome.problems.append(f"{problem}: {frame[:80].hex()}")
    if not changes and _settled_hash(broker.data) != before:
        outcome.problems.append(
            "frames that are no requests, or change nothing, have changed the data directory"
        )
    outcome.problems += bystander.finish()
    slowest = max(outcome.figures.get("slowest_ms", 0.0), bystander.slowest_s * 1000)
    outcome.figures["slowest_ms"] = slowest


# Frames


def _bent_frame(rng: random.Random, *, changes: bool) -> tuple[bytes, Api | None, bool]:
    """A frame, the API that it began as, and whether it may still be a request."""
    if rng.random() < 0.1:
        return _not_a_request(rng), None, False
    frame, api = _whole_frame(rng)
    while not changes and api not in _READING and rng.random() < 0.5:
        frame, api = _whole_frame(rng)
    if not changes and api not in _READING:
        # Cut short, it is not what it was.
        return frame[: rng.randrange(len(frame))], api, False
    bent = bytearray(frame)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        _bend(rng, bent, 8)
    return bytes(bent), api, True


def _whole_frame(rng: random.Random) -> tuple[bytes, Api]:
    recorded = recorded_frames()
    if rng.random() < 0.4:
        frame = rng.choice(recorded)
        # Some client writes more than a request has; cut in that, it would still be one.
        return frame, Api(int.from_bytes(frame[:2], "big"))
    api, version = rng.choice(list(stable_pairs()))
    message = sample(rng, f"{api.title}Request", version, tags=rng.random() < 0.2)
    return encode_request(api, version, rng.getrandbits(31), rng.choice([None, "", "bent", "ü"]), message)[
        4:
    ], api


def _not_a_request(rng: random.Random) -> bytes:
    kind = rng.randrange(4)
    if kind == 0:
        return b""
    if kind == 1:
        return rng.randbytes(rng.randint(1, 7))
    if kind == 2:
        return struct.pack(">hhi", rng.randint(100, 32767), 0, 1) + rng.randbytes(rng.randint(0, 300))
    version = rng.choice([-1, 100, 32767, -32768])
    return struct.pack(">hhih", rng.choice((0, 1, 3, 11, 19)), version, 1, -1) + rng.randbytes(30)


def _bend(rng: random.Random, frame: bytearray, start: int) -> None:
    """Leaves the API, the version and the request's number as they are."""
    if len(frame) <= start:
        frame += rng.randbytes(4)
    at = rng.randrange(start, len(frame))
    kind = rng.randrange(6)
    if kind == 0:
        frame[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        frame[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
    elif kind == 2:
        size = rng.choice((2, 4))
        frame[at : at + size] = (rng.choice(_EDGES) % (1 << 8 * size)).to_bytes(size, "big")
    elif kind == 3:
        del frame[at : at + rng.randint(1, 8)]
    elif kind == 4:
        frame[at:at] = rng.randbytes(rng.randint(1, 8))
    else:
        del frame[at:]


def _sent(port: int, frame: bytes, api: Api | None, is_request: bool) -> str | None:
    """Send one frame and read all that comes; says what is wrong with that."""
    waits = api in _WAITING and is_request
    heard = bytearray()
    with socket.create_connection(("127.0.0.1", port), timeout=0.05 if waits else 15) as connection:
        try:
            connection.sendall(struct.pack(">i", len(frame)) + frame)
            if not waits:
                connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(1 << 16):
                heard += piece
        except TimeoutError:
            if not waits:
                return f"{api!r} was neither answered nor closed"
        except OSError:
            pass
    if not heard:
        return None
    if not is_request and api is not Api.API_VERSIONS:
        return f"{api!r}, which is no request, was answered with {len(heard)} bytes"
    if len(heard) < 8 or int.from_bytes(heard[:4], "big") != len(heard) - 4:
        return f"{api!r} was answered with {len(heard)} bytes that are not one whole frame"
    if heard[4:8] != frame[4:8]:
        return f"{api!r} was answered under another number"
    return None


# What must not change


def _keep(port: int, topic: str) -> None:
    with Connection(port) as connection:
        assert calls.create_topic(connection, topic, 1) == 0
        for number in range(_KEPT):
            batch = build_batch([b"kept %d" % number], int(time.time() * 1000))
            assert calls.produce(connection, topic, 0, batch).error == 0


def _expect_kept(port: int, topic: str, outcome: Outcome, when: str) -> None:
    with Connection(port) as connection:
        found: list[bytes] = []
        for batch in parse_batches(calls.fetch(connection, topic, 0, 0).records):
            if isinstance(batch, Batch):
                found += batch.values or ()
    if found != [b"kept %d" % number for number in range(_KEPT)]:
        outcome.problems.append(f"{when} the kept topic has other records: {found[:3]}")


def _topic_files(broker: BrokerProcess, topic: str) -> str:
    with Connection(broker.port) as connection:
        (seen,) = calls.topics(connection, [topic])
    return _hash(broker.data / "topics" / seen.id.hex())


def _settled_hash(directory: Path) -> str:
    """The hash of the tree, once it no longer changes by itself."""
    before = ""
    while (found := _hash(directory)) != before:
        before = found
        time.sleep(0.1)
    return found


def _hash(directory: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        digest.update(str(path.relative_to(directory)).encode())
        if path.is_file():
            with contextlib.suppress(FileNotFoundError):
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
