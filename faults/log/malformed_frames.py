"""Fault X20, malformed frames: every API in every version, truncated, mutated, or random.

Frames have two sources: requests generated from the protocol's schemas, and recorded traffic of a stock client.
Mutations break lengths, counts and numbers. A run has two stages, each beside a well-behaved client:

    nothing may change     frames that cannot be requests, and mutated frames of APIs that only read. The hash of the
                           data directory must stay the same
    anything may happen    mutated frames of all APIs: some are still valid requests, and are executed. A topic that no
                           frame names must keep its files, byte for byte

The cases cover every API of the broker in every version. The broker must respond to each frame with a whole response,
or close the connection. A response must have the request's correlation id, and no error code that blames the broker. An
unsupported version must get error 35 if the broker responds. The broker must log no unexpected exception, keep serving,
and stop cleanly.
"""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from faults.file_digests import changed_files, file_digests, stable_digests
from faults.log.bystander import Bystander
from faults.outcome import Outcome
from faults.protocol import calls
from faults.protocol.batches import Batch, build_batch, parse_batches
from faults.protocol.connection import Connection
from faults.protocol.message_samples import sample
from faults.protocol.mutation import mutated
from faults.protocol.recorded_traffic import recorded_frames
from faults.protocol.shape_sizes import offered_pairs
from faults.run_directory import run_directory
from faults.servers.broker_process import BrokerDied, BrokerProcess
from headrace.wire import Api, WireError, decode_response, encode_request, versions

__all__ = ["CASES", "UNPROTECTED", "run"]

FAULT = "X20"
UNPROTECTED = {"malformed-check": r"unexpected exception"}
CASES = 100

_READ_ONLY = {
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
# These APIs can wait for other members before they respond, for as long as the request allows.
_MAY_WAIT = {Api.JOIN_GROUP, Api.SYNC_GROUP}
# Codes that blame the broker: its storage, its coordinators, its replicas.
_BROKER_ERRORS = {-1, 5, 8, 9, 13, 14, 15, 16, 19, 20, 41, 56, 57}
_UNSUPPORTED_VERSION = 35
_LAST_CODE = 133
_KEPT_RECORDS = 50


def run(
    seed: int, *, protected: bool = True, without: str = "malformed-check", cases: int = CASES
) -> Outcome:
    rng = random.Random(seed)
    outcome = Outcome(FAULT, seed, cases=cases)
    starter = [] if protected else ["--without", without]
    with (
        run_directory(FAULT, seed, in_memory=True) as home,
        BrokerProcess(home, starter=starter, forked=True, options=["--no-auto-create-topics"]) as broker,
    ):
        broker.start()
        # No mutated request contains this name.
        kept = f"kept-{rng.randbytes(16).hex()}"
        try:
            _create_kept_topic(broker.port, kept)
            # Each run continues with the API and version where the previous one ended.
            first = seed * cases
            _run_stage(broker, rng, outcome, range(first, first + cases // 2), changes=False)
            files = _topic_files(broker, kept)
            _run_stage(broker, rng, outcome, range(first + cases // 2, first + cases), changes=True)
            if _topic_files(broker, kept) != files:
                outcome.problems.append("the files of a topic that no request named have changed")
            _expect_kept(broker.port, kept, outcome, "at the end")
            if broker.stop():
                outcome.problems.append("the broker did not stop cleanly")
            broker.start()
            _expect_kept(broker.port, kept, outcome, "after a restart")
        except BrokerDied as died:
            outcome.problems.append(str(died))
        outcome.problems += [
            f"the broker logged an unexpected exception:\n{trace}" for trace in broker.unexpected_exceptions()
        ]
        outcome.peak_rss_mb = max(broker.peak_rss_mb, broker.rss_mb("VmHWM"))
    return outcome


def _run_stage(
    broker: BrokerProcess, rng: random.Random, outcome: Outcome, cases: range, *, changes: bool
) -> None:
    bystander = Bystander(broker.port, f"bystander-{changes}", pause_s=0.002, writes=changes)
    bystander.prepare()
    before = {} if changes else stable_digests([broker.data])
    bystander.start()
    for number in cases:
        frame, api, is_request = _malformed_frame(rng, number, changes=changes)
        outcome.hits += 1
        problem = _send_and_check(broker.port, frame, api, is_request)
        if problem:
            outcome.problems.append(f"{problem}: {frame[:80].hex()}")
    if not changes and (changed := changed_files(before, stable_digests([broker.data]))):
        outcome.problems.append(f"frames that are not requests, or that only read, have changed {changed}")
    outcome.problems += bystander.finish()
    slowest = max(outcome.figures.get("slowest_ms", 0.0), bystander.slowest_s * 1000)
    outcome.figures["slowest_ms"] = slowest


# Frames


def _malformed_frame(rng: random.Random, number: int, *, changes: bool) -> tuple[bytes, Api | None, bool]:
    """Return a frame, its original API, and whether it might still be a valid request."""
    if rng.random() < 0.1:
        return _not_a_request(rng), None, False
    frame, api = _valid_frame(rng, number)
    if not changes and api not in _READ_ONLY:
        # Truncating the frame makes it an invalid request.
        return frame[: rng.randrange(len(frame))], api, False
    return mutated(rng, frame, 8), api, True


def _valid_frame(rng: random.Random, number: int) -> tuple[bytes, Api]:
    """``number`` counts cases across all runs, so that each case uses the next API and version."""
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


def _send_and_check(port: int, frame: bytes, api: Api | None, is_request: bool) -> str | None:
    """Send one frame, read the whole response, and return what is wrong with it, or None."""
    waits = api in _MAY_WAIT and is_request
    received = bytearray()
    with socket.create_connection(("127.0.0.1", port), timeout=0.05 if waits else 15) as connection:
        try:
            connection.sendall(struct.pack(">i", len(frame)) + frame)
            if not waits:
                connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(1 << 16):
                received += piece
        except TimeoutError:
            if not waits:
                return f"{api!r} got no response, and the connection stayed open"
        except OSError:
            pass
    if not received:
        return None
    api_key = int.from_bytes(frame[:2], "big")
    if not is_request and api_key != Api.API_VERSIONS:
        return f"{api!r} got a response of {len(received)} bytes, although the frame is not a request"
    if len(received) < 8 or int.from_bytes(received[:4], "big") != len(received) - 4:
        return f"{api!r} got {len(received)} bytes that are not one whole frame"
    if received[4:8] != frame[4:8]:
        return f"{api!r} got a response with another correlation id"
    return _wrong_code(Api(api_key), int.from_bytes(frame[2:4], "big", signed=True), bytes(received[4:]))


def _wrong_code(api: Api, version: int, answer: bytes) -> str | None:
    first, last = versions(api)
    if not first <= version <= last:
        error = int.from_bytes(answer[4:6], "big", signed=True)
        expected = _UNSUPPORTED_VERSION
        return (
            None
            if error == expected
            else f"{api!r} in version {version} got error {error} instead of {expected}"
        )
    try:
        _, message = decode_response(api, version, answer)
    except WireError as error:
        return f"the response to {api!r} {version} cannot be read: {error}"
    unexpected = [code for code in _codes(message) if code in _BROKER_ERRORS or not 0 <= code <= _LAST_CODE]
    return f"{api!r} {version} got error {unexpected[0]}" if unexpected else None


def _codes(message: Any) -> Iterator[int]:
    """Yield all error codes of a response, at any depth."""
    for field in type(message).struct_.fields:
        value = getattr(message, field.name, None)
        if value is None:
            continue
        if field.name == "error_code":
            yield int(value)
        elif field.struct is not None:
            for nested in value if field.is_array else [value]:
                yield from _codes(nested)


# Checks of what must not change


def _create_kept_topic(port: int, topic: str) -> None:
    with Connection(port) as connection:
        assert calls.create_topic(connection, topic, 1) == 0
        for number in range(_KEPT_RECORDS):
            batch = build_batch([b"kept %d" % number], int(time.time() * 1000))
            assert calls.produce(connection, topic, 0, batch).error == 0


def _expect_kept(port: int, topic: str, outcome: Outcome, when: str) -> None:
    with Connection(port) as connection:
        values: list[bytes] = []
        for batch in parse_batches(calls.fetch(connection, topic, 0, 0).records):
            if isinstance(batch, Batch):
                values += batch.values or ()
    if values != [b"kept %d" % number for number in range(_KEPT_RECORDS)]:
        outcome.problems.append(f"{when} the kept topic has other records: {values[:3]}")


def _topic_files(broker: BrokerProcess, topic: str) -> dict[Path, str]:
    with Connection(broker.port) as connection:
        (topic_metadata,) = calls.topics(connection, [topic])
    return file_digests([broker.data / "topics" / topic_metadata.id.hex()])
