"""X20, malformed frames: every API in every version, cut short, bent, or made of nothing but chance.

The frames come from two sources: requests made up from the protocol's shapes, and real traffic of a stock client. They
are broken in ways that lengths, counts and numbers suffer from. Two stages, each beside a good client:

    nothing may change     frames that cannot be requests, and frames of APIs that change nothing, however bent. The
                           whole data directory is the same afterwards, by its hash
    anything may be meant  frames of all APIs, bent: some are still requests, and are done. But a topic that none of
                           them names keeps its files to the last byte

Every API that the broker offers has its turn, in every version. To each frame the broker answers with a whole one that
carries the request's number and codes that blame the request, or hangs up: a version that is not spoken gets error 35
where Kafka answers it. The broker foresees all of them, goes on serving, and stops cleanly.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.faults import calls
from bench.faults.batches import Batch, build_batch, parse_batches
from bench.faults.bystander import Bystander
from bench.faults.connection import Connection
from bench.faults.mutation import mutated
from bench.faults.outcome import Outcome
from bench.faults.process import BrokerDied, BrokerProcess
from bench.faults.recording import recorded_frames
from bench.faults.shape_sizes import offered_pairs
from bench.faults.workplace import workplace
from headrace.wire import Api, WireError, decode_response, encode_request, versions
from tests.unit.wire.samples import sample

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
# What would blame the broker, with which nothing is wrong: its storage, its coordinators, its replicas.
_BLAMING = {-1, 5, 8, 9, 13, 14, 15, 16, 19, 20, 41, 56, 57}
_UNSUPPORTED_VERSION = 35
_LAST_CODE = 133
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
            # Each run goes on through the APIs and versions where the one before has ended.
            first = seed * cases
            _stage(broker, rng, outcome, range(first, first + cases // 2), changes=False)
            files = _topic_files(broker, kept)
            _stage(broker, rng, outcome, range(first + cases // 2, first + cases), changes=True)
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


def _stage(
    broker: BrokerProcess, rng: random.Random, outcome: Outcome, cases: range, *, changes: bool
) -> None:
    bystander = Bystander(broker.port, f"bystander-{changes}", pause_s=0.002, writes=changes)
    bystander.prepare()
    before = "" if changes else _settled_hash(broker.data)
    bystander.start()
    for number in cases:
        frame, api, is_request = _bent_frame(rng, number, changes=changes)
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


def _bent_frame(rng: random.Random, number: int, *, changes: bool) -> tuple[bytes, Api | None, bool]:
    """A frame, the API that it began as, and whether it may still be a request."""
    if rng.random() < 0.1:
        return _not_a_request(rng), None, False
    frame, api = _whole_frame(rng, number)
    if not changes and api not in _READING:
        # Cut short, it is not what it was.
        return frame[: rng.randrange(len(frame))], api, False
    return mutated(rng, frame, 8), api, True


def _whole_frame(rng: random.Random, number: int) -> tuple[bytes, Api]:
    """``number`` is that of the case among those of all runs: one after the other takes the next API and version."""
    if rng.random() < 0.4:
        frame = rng.choice(recorded_frames())
        return frame, Api(int.from_bytes(frame[:2], "big"))
    pairs = offered_pairs()
    api, version = pairs[number % len(pairs)]
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
    return struct.pack(">hhih", rng.choice((0, 1, 3, 11, 18, 19)), version, 1, -1) + rng.randbytes(30)


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
    asked = int.from_bytes(frame[:2], "big")
    if not is_request and asked != Api.API_VERSIONS:
        return f"{api!r}, which is no request, was answered with {len(heard)} bytes"
    if len(heard) < 8 or int.from_bytes(heard[:4], "big") != len(heard) - 4:
        return f"{api!r} was answered with {len(heard)} bytes that are not one whole frame"
    if heard[4:8] != frame[4:8]:
        return f"{api!r} was answered under another number"
    return _wrong_code(Api(asked), int.from_bytes(frame[2:4], "big", signed=True), bytes(heard[4:]))


def _wrong_code(api: Api, version: int, answer: bytes) -> str | None:
    first, last = versions(api)
    if not first <= version <= last:
        error = int.from_bytes(answer[4:6], "big", signed=True)
        due = _UNSUPPORTED_VERSION
        return None if error == due else f"{api!r} in version {version} got error {error}, and {due} was due"
    try:
        _, message = decode_response(api, version, answer)
    except WireError as error:
        return f"the answer to {api!r} {version} cannot be read: {error}"
    wrong = [code for code in _codes(message) if code in _BLAMING or not 0 <= code <= _LAST_CODE]
    return f"{api!r} {version} was answered with error {wrong[0]}" if wrong else None


def _codes(message: Any) -> Iterator[int]:
    """All error codes of an answer, at whatever depth."""
    for field in type(message).struct_.fields:
        found = getattr(message, field.name, None)
        if field.name == "error_code":
            yield int(found)
        elif field.struct is not None and found is not None:
            for one in found if field.is_array else [found]:
                yield from _codes(one)


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
