"""Proofs that are asked for: one at a time, in a thread of its own, with its progress and the last result of each."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.clock import Clock
from headrace.errors import HeadraceError
from headrace.serve.errors import Draining, ProofElsewhere, ProofUnderWay
from headrace.serve.position_json import time_json
from headrace.serve.proofs.plain_prover import PlainProver
from headrace.serve.proofs.proof_book import Proof, ProofBook
from headrace.serve.proofs.prover import Prover

__all__ = ["AskedProofs"]

_END_S = 5.0


class _CalledOff(Exception):
    """The server ends."""


class _Running:
    def __init__(self, view: str, began: float, began_ms: int) -> None:
        self.view = view
        self.began = began
        self.began_ms = began_ms
        self.text = "begins"
        self.done = 0
        self.of = 0
        self.ended = threading.Event()


class AskedProofs:
    """For any thread. ``prover`` is a run's; without one the server does what it can by itself."""

    def __init__(
        self,
        app: App,
        cluster: Cluster,
        data: Path,
        clock: Clock,
        prover: Prover | None,
        warn: Callable[[BaseException], None],
    ) -> None:
        self._app = app
        self._prover: Prover = prover if prover is not None else PlainProver(app, cluster, data)
        self._clock = clock
        self._warn = warn
        self._book = ProofBook(data / "serve" / f"{app.name}-proofs.json")
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._closed = False

    def begin(self, view: str) -> None:
        """One that runs already is the same."""
        if all(one.name != view for one in self._app.views):
            raise ProofElsewhere(
                f"view {view!r} is computed when it is read: nothing of it is kept that could be wrong"
            )
        self._prover.expect_can(view)
        with self._lock:
            if self._closed:
                raise Draining("the server is about to stop", hint="ask again when it is back")
            running = self._running
            if running is not None and running.view == view:
                return
            if running is not None:
                raise ProofUnderWay(
                    f"view {running.view!r} is being verified, and that is one at a time",
                    hint=f"wait for it: GET /v1/views/{running.view}/verify",
                    members={"view": running.view},
                )
            began = self._running = _Running(view, self._clock.steady(), self._clock.now_ms())
        threading.Thread(target=self._run, args=(began,), name="serve proof", daemon=True).start()

    def told(self, view: str) -> dict[str, Any]:
        running = self._running
        last = self._book.find(view)
        told: dict[str, Any] = {
            "view": view,
            "state": "idle" if last is None else "done",
            "progress": None,
            "last": None if last is None else {**msgspec.to_builtins(last), "at": time_json(last.at_ms)},
        }
        if running is not None and running.view == view:
            told |= {"state": "running", "progress": self._progress(running)}
        return told

    def _progress(self, running: _Running) -> dict[str, Any]:
        tasks = self._prover.tasks()
        done, of = running.done, running.of
        text = running.text
        if not of and tasks is not None:
            text = f"{text}; {tasks[0]} of {tasks[1]} tasks of Spark"
        seconds = round(self._clock.steady() - running.began, 1)
        return {"done": done, "of": max(done, of), "text": text, "seconds": seconds}

    # In the thread

    def _run(self, running: _Running) -> None:
        def say(line: str) -> None:
            self._expect_wanted()
            running.text, running.done, running.of = line, 0, 0

        def count(done: int, of: int) -> None:
            self._expect_wanted()
            running.of, running.done = of, done

        try:
            self._keep(running, Proof.of(self._prover.verify(running.view, say, count)))
        except _CalledOff:
            pass
        except HeadraceError as error:
            self._fail(running, error)
        except Exception as error:
            if not self._closed:
                self._warn(error)
            told = HeadraceError(f"it broke: {type(error).__name__}: {error}", hint="verify it again")
            self._fail(running, told)
        finally:
            with self._lock:
                self._running = None
            running.ended.set()

    def _fail(self, running: _Running, error: HeadraceError) -> None:
        if not self._closed:
            seconds = self._clock.steady() - running.began
            self._keep(running, Proof.failed(error, running.began_ms, seconds))

    def _keep(self, running: _Running, proof: Proof) -> None:
        try:
            self._book.keep(running.view, proof)
        except OSError as error:
            # It is told until the server ends.
            self._warn(error)

    def _expect_wanted(self) -> None:
        if self._closed:
            raise _CalledOff

    def close(self) -> None:
        with self._lock:
            self._closed, running = True, self._running
        if running is not None:
            self._prover.stop_verifying()
            running.ended.wait(_END_S)
