"""Asks the coordinators of groups, through a process of its own: the client library can end the one that it is in."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence

import msgspec
from confluent_kafka import KafkaError

from headrace.client.cluster import Cluster
from headrace.client.errors import LogError, from_kafka
from headrace.client.group_answers import Answer, Committed, Described, Group, Job, Listed, Move, Question
from headrace.client.group_worker import AT_ONCE
from headrace.readable import readable

__all__ = ["GroupAsker"]

_PAUSES_S = (0.1, 0.3, 1.0, 2.0)
"""Before a question whose process ended is asked again: a coordinator that is moving is one for a moment."""
_START_S = 30.0
_GRACE_S = 10.0
_LEAVES_S = 5.0
_CHUNK_BYTES = 1 << 16
_ANSWER_BYTES_MAX = 256 << 20
# Deleted since it was listed, or somebody else's: then its topics are as well.
_GONE = {KafkaError.GROUP_ID_NOT_FOUND, KafkaError.GROUP_AUTHORIZATION_FAILED}


class GroupAsker:
    """For any thread. The process is started with the first question, and anew with the next one where it ended."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[..., GroupAsker] | None = None
        self._ended = ""
        """How the last one did that ended by itself."""

    def close(self) -> None:
        """For good. Whoever waits for an answer is told so at once."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()
        with self._lock:
            self._forget()

    def listed(self) -> dict[str, tuple[str, str]]:
        """States and types by name, in the order of names."""
        doing = "listing groups"
        answer = self._ask(Listed(), 1, doing)
        for refused in answer.refused.values():
            raise from_kafka(refused.error, doing)
        return dict(sorted(answer.listed.items()))

    def committed(self, groups: Sequence[str]) -> dict[str, dict[tuple[str, int], int]]:
        """By group and partition, in their order; without groups that are gone."""
        answer = self._ask(Committed(list(groups)), len(groups), "asking for the offsets of groups")
        self._expect(answer, "asking for the offsets of group")
        return {
            group: {(topic, partition): offset for topic, partition, offset in answer.committed[group]}
            for group in groups
            if group in answer.committed
        }

    def described(self, groups: Sequence[str]) -> Mapping[str, Group]:
        """Without groups that are gone."""
        answer = self._ask(Described(list(groups)), len(groups), "describing groups")
        self._expect(answer, "describing group")
        return answer.groups

    def move(self, group: str, places: Sequence[tuple[str, int, int]]) -> None:
        """To these offsets; the group must have no members."""
        doing = f"moving group {group!r}"
        answer = self._ask(Move(group, list(places)), 1, doing)
        for refused in answer.refused.values():
            raise from_kafka(refused.error, doing)
        for topic, partition, refused in answer.unmoved:
            raise from_kafka(refused.error, f"{doing} at {topic} [{partition}]", topic=topic)

    def _expect(self, answer: Answer, doing: str) -> None:
        for group, refused in answer.refused.items():
            if refused.code not in _GONE:
                raise from_kafka(refused.error, f"{doing} {group!r}")

    # The process

    def _ask(self, question: Question, groups: int, doing: str) -> Answer:
        if not groups:
            return Answer()
        patience_s = (self._cluster.timeout_s + _GRACE_S) * -(-groups // AT_ONCE)
        line = msgspec.json.encode(question) + b"\n"
        if not self._lock.acquire(timeout=patience_s):
            raise _unanswered(doing)
        try:
            for pause_s in (*_PAUSES_S, 0.0):
                answer = self._answer(line, patience_s, doing)
                if answer is not None:
                    return answer
                time.sleep(pause_s)
        finally:
            self._lock.release()
        raise LogError(
            f"{doing}: the process of the client library ended {len(_PAUSES_S) + 1} times, {self._ended}",
            name="CLIENT_LOST",
            hint="the broker may be restarting; it is tried again",
            retriable=True,
        )

    def _answer(self, line: bytes, patience_s: float, doing: str) -> Answer | None:
        """None if the process ended meanwhile. What is asked twice has no other outcome than what is asked once."""
        if self._closed:
            raise LogError(f"{doing}: nobody asks any more", name="CLIENT_CLOSED")
        started = self._process is None
        process = self._process or self._start()
        try:
            assert process.stdin is not None
            process.stdin.write(line)
            process.stdin.flush()
            told = _line_of(process, patience_s + (_START_S if started else 0.0))
        except BrokenPipeError:
            told = b""
        except TimeoutError:
            self._forget()
            raise _unanswered(doing) from None
        except BaseException:
            # Its answer would be taken for that of the next question.
            self._forget()
            raise
        if not told.endswith(b"\n"):
            self._forget()
            self._ended = _how(process.returncode)
            return None
        return msgspec.json.decode(told, type=Answer)

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace.client.group_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # What the library says when it fails is for nobody here: how it ended is told.
            stderr=subprocess.DEVNULL,
            # In an order of its own: Ctrl-C is for whoever asks.
            start_new_session=True,
        )
        assert process.stdin is not None
        cluster = self._cluster
        with contextlib.suppress(BrokenPipeError):
            job = Job(cluster.bootstrap, dict(cluster.properties), cluster.timeout_s)
            process.stdin.write(msgspec.json.encode(job) + b"\n")
        self._process = process
        self._end = weakref.finalize(self, _end, process)
        return process

    def _forget(self) -> None:
        if self._end is not None:
            self._end()
        self._process = self._end = None


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        # One that closed its end is about to, and says by what.
        process.wait(_LEAVES_S if process.stdout and readable(process.stdout.fileno(), 0) else 0)
    process.send_signal(signal.SIGKILL)
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(BrokenPipeError):
            if pipe is not None:
                pipe.close()
    process.wait()


def _how(code: int) -> str:
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


def _line_of(process: subprocess.Popen[bytes], timeout_s: float) -> bytes:
    """What is there when the process ends, if that is sooner."""
    assert process.stdout is not None
    deadline = time.monotonic() + timeout_s
    found = bytearray()
    while not found.endswith(b"\n"):
        if len(found) > _ANSWER_BYTES_MAX:
            raise LogError(
                f"an answer about groups has more than {_ANSWER_BYTES_MAX >> 20} MiB",
                name="ANSWER_TOO_LARGE",
                hint="the cluster has more groups and offsets than are looked at at once",
            )
        if not readable(process.stdout.fileno(), max(0.0, deadline - time.monotonic())):
            raise TimeoutError
        chunk = os.read(process.stdout.fileno(), _CHUNK_BYTES)
        if not chunk:
            break
        found += chunk
    return bytes(found)


def _unanswered(doing: str) -> LogError:
    return LogError(
        f"{doing}: no answer in time",
        name="TIMED_OUT",
        hint="the broker cannot be reached; it is tried again",
        retriable=True,
    )
