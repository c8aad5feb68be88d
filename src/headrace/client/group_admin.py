"""Consumer groups: lists and describes groups, reads and alters committed offsets, and deletes groups.

librdkafka aborts its whole process when it loses a broker during a request about groups (see ``group_worker``). So
``GroupAdminProcess`` sends these requests to a worker process. A request and its response are one JSON line each. If a
worker dies, another worker is started. The lag metrics, the console and the command line use this module.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence

import msgspec
from confluent_kafka import KafkaError, KafkaException

from headrace.client.cluster import Cluster
from headrace.client.errors import LogError, from_kafka
from headrace.files import readable

__all__ = [
    "CONCURRENT_GROUPS",
    "AlterOffsets",
    "DeleteGroups",
    "DescribeGroups",
    "FetchOffsets",
    "Group",
    "GroupAdminProcess",
    "GroupError",
    "GroupRequest",
    "GroupResponse",
    "ListGroups",
    "Member",
    "WorkerConfig",
]

CONCURRENT_GROUPS = 100
"""The number of groups for which the worker sends requests concurrently."""
_PAUSES_S = (0.1, 0.3, 1.0, 2.0)
"""Pauses before the retries of a request whose worker died. Moving a group to another coordinator takes some time."""
_START_S = 30.0
_GRACE_S = 10.0
_EXIT_S = 5.0
_READY_POLL_S = 0.1
_CHUNK_BYTES = 1 << 16
_RESPONSE_BYTES_MAX = 256 << 20
# Errors of groups to skip: the group was deleted after it was listed, or this client may not read it.
_ABSENT = {KafkaError.GROUP_ID_NOT_FOUND, KafkaError.GROUP_AUTHORIZATION_FAILED}
_COORDINATOR_STARTING = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}


# The JSON lines between the processes


class WorkerConfig(msgspec.Struct, frozen=True):
    """The first line that a worker reads: the cluster to connect to."""

    bootstrap: str
    properties: dict[str, str]
    timeout_s: float


class ListGroups(msgspec.Struct, frozen=True, tag=True):
    pass


class FetchOffsets(msgspec.Struct, frozen=True, tag=True):
    groups: list[str]


class DescribeGroups(msgspec.Struct, frozen=True, tag=True):
    groups: list[str]


class AlterOffsets(msgspec.Struct, frozen=True, tag=True):
    group: str
    offsets: list[tuple[str, int, int]]
    """Topic, partition, offset."""


class DeleteGroups(msgspec.Struct, frozen=True, tag=True):
    groups: list[str]


GroupRequest = ListGroups | FetchOffsets | DescribeGroups | AlterOffsets | DeleteGroups


class GroupError(msgspec.Struct, frozen=True):
    code: int
    text: str
    retriable: bool

    @classmethod
    def of(cls, error: KafkaError) -> GroupError:
        return cls(error.code(), error.str(), error.retriable())

    @property
    def exception(self) -> KafkaException:
        return KafkaException(KafkaError(self.code, self.text, False, self.retriable))


class Member(msgspec.Struct, frozen=True):
    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    partitions: list[tuple[str, int]]


class Group(msgspec.Struct, frozen=True):
    state: str
    type: str
    assignor: str | None
    members: list[Member]
    coordinator: int | None = None
    """The id of the broker that coordinates the group."""


class GroupResponse(msgspec.Struct, frozen=True):
    """The results of a request, by group name."""

    listed: dict[str, tuple[str, str]] = {}
    """State and type of each group."""
    committed: dict[str, list[tuple[str, int, int]]] = {}
    groups: dict[str, Group] = {}
    errors: dict[str, GroupError] = {}
    """The key is empty if the error does not concern a single group."""
    unaltered: list[tuple[str, int, GroupError]] = []
    """Topic, partition and error of offsets that the broker did not alter."""


class GroupAdminProcess:
    """Thread-safe. The first request starts the worker. If a worker dies, the next request starts another.

    With ``wait_for_coordinator``, a request is retried while a group's coordinator is starting, up to the cluster's
    timeout. A caller that polls periodically does not need it. With ``skip_unauthorized``, a group that this client may
    not read counts as missing.
    """

    def __init__(
        self, cluster: Cluster, *, wait_for_coordinator: bool = False, skip_unauthorized: bool = True
    ) -> None:
        self._cluster = cluster
        self._ignored_codes = (
            _ABSENT if skip_unauthorized else _ABSENT - {KafkaError.GROUP_AUTHORIZATION_FAILED}
        )
        self._wait_s = cluster.timeout_s if wait_for_coordinator else 0.0
        self._lock = threading.Lock()
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._terminate: weakref.finalize[..., GroupAdminProcess] | None = None
        self._exit_reason = ""
        """How the last worker died: the signal or the exit code."""

    def close(self) -> None:
        """Stop the worker permanently. A request in progress fails immediately."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()
        with self._lock:
            self._stop_worker()

    def list_groups(self) -> dict[str, tuple[str, str]]:
        """Return the state and the type of each group, sorted by group name."""
        doing = "listing groups"
        response = self._send(ListGroups(), 1, doing)
        for error in response.errors.values():
            raise from_kafka(error.exception, doing)
        return dict(sorted(response.listed.items()))

    def committed_offsets(self, groups: Sequence[str]) -> dict[str, dict[tuple[str, int], int]]:
        """Return the committed offsets by group and partition. Groups that do not exist are omitted."""
        response = self._send_when_ready(FetchOffsets, groups, "fetching the offsets of groups")
        _raise_errors(response, "fetching the offsets of group", ignore=self._ignored_codes)
        return {
            group: {(topic, partition): offset for topic, partition, offset in response.committed[group]}
            for group in groups
            if group in response.committed
        }

    def describe(self, groups: Sequence[str]) -> Mapping[str, Group]:
        """Return the description of each group. Groups that do not exist are omitted."""
        response = self._send_when_ready(DescribeGroups, groups, "describing groups")
        _raise_errors(response, "describing group", ignore=self._ignored_codes)
        return response.groups

    def alter_offsets(self, group: str, offsets: Sequence[tuple[str, int, int]]) -> None:
        """Set committed offsets (topic, partition, offset) of a group. The group must not have members."""
        doing = f"altering the offsets of group {group!r}"
        response = self._send_when_ready(lambda _: AlterOffsets(group, list(offsets)), [group], doing)
        for error in response.errors.values():
            raise from_kafka(error.exception, doing)
        for topic, partition, error in response.unaltered:
            raise from_kafka(error.exception, f"{doing} at {topic} [{partition}]", topic=topic)

    def delete(self, groups: Sequence[str]) -> dict[str, LogError]:
        """Delete groups and their committed offsets; returns an error for each group that was not deleted."""
        response = self._send_when_ready(DeleteGroups, groups, "deleting groups")
        return {
            group: from_kafka(error.exception, f"deleting group {group!r}")
            for group, error in response.errors.items()
        }

    def _send_when_ready(
        self, request: Callable[[list[str]], GroupRequest], groups: Sequence[str], doing: str
    ) -> GroupResponse:
        """Send the request for all groups. Retry groups whose coordinator is starting, until the wait time is over."""
        deadline = time.monotonic() + self._wait_s
        response = self._send(request(list(groups)), len(groups), doing)
        while True:
            starting = [
                group for group, error in response.errors.items() if error.code in _COORDINATOR_STARTING
            ]
            if not starting or time.monotonic() >= deadline:
                return response
            time.sleep(_READY_POLL_S)
            retried = self._send(request(starting), len(starting), doing)
            errors = {group: error for group, error in response.errors.items() if group not in starting}
            response = GroupResponse(
                committed={**response.committed, **retried.committed},
                groups={**response.groups, **retried.groups},
                errors={**errors, **retried.errors},
                unaltered=retried.unaltered,
            )

    # The worker

    def _send(self, request: GroupRequest, groups: int, doing: str) -> GroupResponse:
        if not groups:
            return GroupResponse()
        timeout_s = (self._cluster.timeout_s + _GRACE_S) * -(-groups // CONCURRENT_GROUPS)
        line = msgspec.json.encode(request) + b"\n"
        if not self._lock.acquire(timeout=timeout_s):
            raise _timed_out(doing)
        try:
            for pause_s in (*_PAUSES_S, 0.0):
                response = self._exchange(line, timeout_s, doing)
                if response is not None:
                    return response
                time.sleep(pause_s)
        finally:
            self._lock.release()
        raise LogError(
            f"{doing}: the Kafka client's worker process died {len(_PAUSES_S) + 1} times, last {self._exit_reason}",
            name="CLIENT_LOST",
            hint="the broker may be restarting; Headrace retries",
            retriable=True,
        )

    def _exchange(self, line: bytes, timeout_s: float, doing: str) -> GroupResponse | None:
        """Send one request and read its response; None if the worker died.

        The caller then sends the request again. That is safe, because all requests are idempotent. The only difference:
        if the first request deleted a group, the second reports the group as missing.
        """
        if self._closed:
            raise LogError(f"{doing}: the group client is closed", name="CLIENT_CLOSED")
        is_new = self._process is None
        process = self._process or self._start_worker()
        try:
            assert process.stdin is not None
            process.stdin.write(line)
            process.stdin.flush()
            response = _read_line(process, timeout_s + (_START_S if is_new else 0.0))
        except BrokenPipeError:
            response = b""
        except TimeoutError:
            self._stop_worker()
            raise _timed_out(doing) from None
        except BaseException:
            # Otherwise the next request would read the response to this one.
            self._stop_worker()
            raise
        if not response.endswith(b"\n"):
            self._stop_worker()
            self._exit_reason = _exit_text(process.returncode)
            return None
        return msgspec.json.decode(response, type=GroupResponse)

    def _start_worker(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace.client.group_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Discard what librdkafka prints when it aborts; the exit code is enough.
            stderr=subprocess.DEVNULL,
            # Use a separate session, so that Ctrl-C reaches only the parent process.
            start_new_session=True,
        )
        assert process.stdin is not None
        cluster = self._cluster
        with contextlib.suppress(BrokenPipeError):
            config = WorkerConfig(cluster.bootstrap, dict(cluster.properties), cluster.timeout_s)
            process.stdin.write(msgspec.json.encode(config) + b"\n")
        self._process = process
        self._terminate = weakref.finalize(self, _terminate, process)
        return process

    def _stop_worker(self) -> None:
        if self._terminate is not None:
            self._terminate()
        self._process = self._terminate = None


def _raise_errors(response: GroupResponse, doing: str, *, ignore: set[int]) -> None:
    for group, error in response.errors.items():
        if error.code not in ignore:
            raise from_kafka(error.exception, f"{doing} {group!r}")


def _terminate(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        # A worker that closed its output is about to exit. Wait for its exit code.
        process.wait(_EXIT_S if process.stdout and readable(process.stdout.fileno(), 0) else 0)
    process.send_signal(signal.SIGKILL)
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(BrokenPipeError):
            if pipe is not None:
                pipe.close()
    process.wait()


def _exit_text(code: int) -> str:
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


def _read_line(process: subprocess.Popen[bytes], timeout_s: float) -> bytes:
    """Read one line; returns an incomplete line if the process exits first."""
    assert process.stdout is not None
    deadline = time.monotonic() + timeout_s
    line = bytearray()
    while not line.endswith(b"\n"):
        if len(line) > _RESPONSE_BYTES_MAX:
            raise LogError(
                f"a response about consumer groups has more than {_RESPONSE_BYTES_MAX >> 20} MiB",
                name="ANSWER_TOO_LARGE",
                hint="the cluster has more groups and offsets than one response can contain",
            )
        if not readable(process.stdout.fileno(), max(0.0, deadline - time.monotonic())):
            raise TimeoutError
        chunk = os.read(process.stdout.fileno(), _CHUNK_BYTES)
        if not chunk:
            break
        line += chunk
    return bytes(line)


def _timed_out(doing: str) -> LogError:
    return LogError(
        f"{doing}: no response in time",
        name="TIMED_OUT",
        hint="the broker cannot be reached; Headrace retries",
        retriable=True,
    )
