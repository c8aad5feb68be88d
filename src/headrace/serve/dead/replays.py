"""The replays of a server: one at a time, in a thread of its own, and the last of each topic to be asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.clock import Clock
from headrace.ops.dead.dead_topic import DeadTopic
from headrace.ops.dead.marks import Marks, marks_path
from headrace.ops.dead.replay import Replay, Wanted
from headrace.serve.errors import Draining, ReplayUnderWay
from headrace.serve.position_json import time_json

__all__ = ["Replays", "replay_json"]

_END_S = 5.0


class Replays:
    """For any thread."""

    def __init__(
        self, cluster: Cluster, app: App, data: Path, clock: Clock, warn: Callable[[BaseException], None]
    ) -> None:
        self._cluster = cluster
        self._app = app
        self._path = marks_path(data, app.name)
        self._clock = clock
        self._warn = warn
        self._lock = threading.Lock()
        self._marks: Marks | None = None
        self._current: Replay | None = None
        self._last: dict[str, Replay] = {}
        self._closed = False

    def marks(self) -> Marks:
        with self._lock:
            if self._marks is None:
                self._marks = Marks(self._path, self._cluster, self._app.name)
            return self._marks

    def begin(self, topic: DeadTopic, wanted: Wanted) -> Replay:
        made = Replay(self._cluster, self._app, self.marks(), topic, wanted, self._clock)
        with self._lock:
            if self._closed:
                raise Draining("the server is about to stop", hint="replay them when it is back")
            current = self._current
            if current is not None and not current.ended.is_set():
                raise ReplayUnderWay(
                    f"letters of {current.topic.name!r} are being written back, {current.done:,} so far",
                    hint=f"wait for it, GET /v1/dead/{current.topic.name}/replay, or call it off",
                    members={"replay": current.id, "topic": current.topic.name},
                )
            self._current = self._last[topic.name] = made
        threading.Thread(target=self._run, args=(made,), name="serve replay", daemon=True).start()
        return made

    def _run(self, replay: Replay) -> None:
        try:
            replay.run()
        except Exception as error:
            self._warn(error)

    def last(self, topic: str) -> Replay | None:
        return self._last.get(topic)

    def close(self) -> None:
        with self._lock:
            self._closed, current = True, self._current
        if current is not None:
            current.cancel()
            current.ended.wait(_END_S)
        if self._marks is not None and (current is None or current.ended.is_set()):
            self._marks.close()


def replay_json(topic: str, replay: Replay | None) -> dict[str, Any]:
    if replay is None:
        return {"topic": topic, "state": "idle", "replay": None}
    states, results = replay.states, replay.results
    done = replay.done
    return {
        "topic": topic,
        "state": replay.state,
        "replay": replay.id,
        "dry_run": replay.wanted.dry_run,
        "again": replay.wanted.again,
        "began": time_json(replay.began_ms),
        "ended": None if replay.ended_ms is None else time_json(replay.ended_ms),
        "progress": {"done": done, "of": max(done, replay.of)},
        "totals": {
            **{state: states[state] for state in ("written", "ready", "already", "cannot")},
            "unfit": replay.unfit,
            "bytes": replay.bytes,
        },
        "words": replay.words(),
        "results": [_result(one) for one in results],
        "left_off": max(0, done - len(results)),
        "error": None if replay.error is None else replay.error.facts(),
    }


def _result(one: Any) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(one)
    return {"origin": None, "to": None, "bytes": 0, "why": "", "unfit": "", "headers": "kept", **told}
