"""The routes that verify a view against the log. One proof (verification) runs at a time, in its own thread."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from headrace.clock import time_json
from headrace.errors import HeadraceError
from headrace.files import make_private_dir, private
from headrace.ops.verify.outdated import OutdatedProofs
from headrace.ops.verify.report import Report
from headrace.serve.errors import ProofInProgress, ProofNotAvailable, ShuttingDown
from headrace.serve.http.context import ServeContext
from headrace.serve.http.route import Feature, Request, Response, ResponseDoc, Route, json_response, text
from headrace.serve.http.tokens import ADMIN, READ_VIEW
from headrace.serve.proofs.prover import PlainProver, Prover
from headrace.serve.query.views import Views

__all__ = ["LastProof", "Proof", "ProofFile", "ProofProgress", "ProofStatus", "Proofs"]

_CLOSE_S = 5.0
_LINES_MAX = 200
_VIEW = text("view", "The name of a view.", chars_max=249, where="path")


class Proof(msgspec.Struct, frozen=True):
    at_ms: int
    seconds: float
    verdict: str
    """One of proven, different and unprovable, or failed if the verification raised an error."""
    line: str
    """A summary in one line."""
    lines: list[str]
    records: int = 0
    rows: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    code: str = ""
    hint: str = ""
    generation: int = 0
    view_digest: str = ""
    topic_id: str = ""

    @classmethod
    def of(cls, report: Report) -> Proof:
        return cls(
            *(report.began_ms, report.seconds, report.verdict, report.line(), report.lines()[:_LINES_MAX]),
            *(report.records, report.found_rows, report.missing, report.extra, report.different),
            generation=report.generation,
            view_digest=report.view_digest,
            topic_id=report.topic_id,
        )

    @classmethod
    def failed(cls, error: HeadraceError, at_ms: int, seconds: float) -> Proof:
        line = f"the view cannot be verified: {error.message}"
        return cls(at_ms, round(seconds, 3), "failed", line, [line], code=error.code, hint=error.hint)


class LastProof(msgspec.Struct, frozen=True, kw_only=True):
    """The last proof of a view, as in the response."""

    at: Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
    at_ms: int
    seconds: float
    verdict: Literal["proven", "different", "unprovable", "failed", "outdated"]
    """``outdated``: the proof is of other rows than those that are served now."""
    line: str
    lines: list[str]
    records: int
    rows: int
    missing: int
    extra: int
    different: int
    code: str
    hint: str


class ProofProgress(msgspec.Struct, frozen=True):
    done: int
    of: int
    text: str
    seconds: float


class ProofStatus(msgspec.Struct, frozen=True):
    view: str
    state: Literal["idle", "running", "done"]
    progress: ProofProgress | None
    last: LastProof | None


_decoder = msgspec.json.Decoder(dict[str, Proof])


class ProofFile:
    """Stores the last proof of each view in a JSON file, so that it survives a restart. Only one process may write
    the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._proofs: dict[str, Proof] = {}
        with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
            self._proofs = _decoder.decode(path.read_bytes())

    def find(self, view: str) -> Proof | None:
        return self._proofs.get(view)

    def store(self, view: str, proof: Proof) -> None:
        self._proofs = {**self._proofs, view: proof}
        make_private_dir(self._path.parent)
        new_path = self._path.with_name(f"{self._path.name}.new")
        with open(new_path, "wb", opener=private) as file:
            file.write(msgspec.json.encode(self._proofs))
        new_path.replace(self._path)


class _Cancelled(Exception):
    """The server is closing, so the proof must stop."""


class _RunningProof:
    def __init__(self, view: str, started_s: float, started_ms: int) -> None:
        self.view = view
        self.started_s = started_s
        self.started_ms = started_ms
        self.text = "begins"
        self.done = 0
        self.of = 0
        self.ended = threading.Event()


class Proofs(Feature):
    """Thread-safe. ``prover`` belongs to the app that runs in the same process. If it is None, the server uses
    ``PlainProver``.
    """

    def __init__(self, context: ServeContext, views: Views, prover: Prover | None) -> None:
        self._context = context
        self._views = views
        self._prover: Prover = (
            prover if prover is not None else PlainProver(context.app, context.cluster, context.data)
        )
        self._file = ProofFile(context.data / "serve" / f"{context.app.name}-proofs.json")
        self._lock = threading.Lock()
        self._outdated = OutdatedProofs(context.cluster, context.app)
        self._running: _RunningProof | None = None
        self._closed = False

    async def close(self) -> None:
        with self._lock:
            self._closed, running = True, self._running
        if running is not None:
            self._prover.stop_verifying()
            running.ended.wait(_CLOSE_S)

    async def begin_proof(self, request: Request) -> Response:
        view = self._views.resolve(request.path_values["view"]).name
        self._start(view)
        return json_response(await self._context.run_on_log(lambda: self.status(view)), status=202)

    async def describe_proof(self, request: Request) -> Response:
        view = self._views.resolve(request.path_values["view"]).name
        return json_response(await self._context.run_on_log(lambda: self.status(view)))

    def _start(self, view: str) -> None:
        """Start a proof in a thread, unless a proof of the same view is already running."""
        if all(stored.name != view for stored in self._context.app.views):
            raise ProofNotAvailable(
                f"view {view!r} is computed on read and has no stored rows to verify",
                hint="verify the flow that writes its topic",
            )
        self._prover.expect_can(view)
        clock = self._context.clock
        with self._lock:
            if self._closed:
                raise ShuttingDown("the server is about to stop", hint="try again after the restart")
            running = self._running
            if running is not None and running.view == view:
                return
            if running is not None:
                raise ProofInProgress(
                    f"view {running.view!r} is being verified, and only one view can be verified at a time",
                    hint=f"wait until GET /v1/views/{running.view}/verify shows that it has ended",
                    members={"view": running.view},
                )
            running = self._running = _RunningProof(view, clock.steady(), clock.now_ms())
        threading.Thread(target=self._run, args=(running,), name="serve proof", daemon=True).start()

    def status(self, view: str) -> ProofStatus:
        running, last = self._running, self._file.find(view)
        last_document = None
        if last is not None:
            last_document = self._document(view, last)
        if running is not None and running.view == view:
            return ProofStatus(view, "running", self._progress(running), last_document)
        return ProofStatus(view, "idle" if last is None else "done", None, last_document)

    def _document(self, view: str, last: Proof) -> LastProof:
        fields = {**msgspec.to_builtins(last), "at": time_json(last.at_ms)}
        why = "" if last.verdict == "failed" else self._outdated.why(view, last)
        if why:
            line = f"view {view}: outdated: {last.verdict}, but {why}"
            fields |= {"verdict": "outdated", "line": line, "lines": [line, *last.lines]}
        return msgspec.convert(fields, LastProof)

    def _progress(self, running: _RunningProof) -> ProofProgress:
        tasks = self._prover.tasks()
        done, of, line = running.done, running.of, running.text
        if not of and tasks is not None:
            line = f"{line}; {tasks[0]} of {tasks[1]} Spark tasks"
        seconds = round(self._context.clock.steady() - running.started_s, 1)
        return ProofProgress(done, max(done, of), line, seconds)

    # Methods that run in the thread of the proof

    def _run(self, running: _RunningProof) -> None:
        def say(line: str) -> None:
            self._expect_open()
            running.text, running.done, running.of = line, 0, 0

        def count(done: int, of: int) -> None:
            self._expect_open()
            running.of, running.done = of, done

        try:
            self._store(running, Proof.of(self._prover.verify(running.view, say, count)))
        except _Cancelled:
            pass
        except HeadraceError as error:
            self._fail(running, error)
        except Exception as error:
            if not self._closed:
                self._context.report("for a proof", error)
            self._fail(
                running,
                HeadraceError(
                    f"the proof failed with {type(error).__name__}: {error}", hint="verify the view again"
                ),
            )
        finally:
            with self._lock:
                self._running = None
            running.ended.set()

    def _fail(self, running: _RunningProof, error: HeadraceError) -> None:
        if not self._closed:
            seconds = self._context.clock.steady() - running.started_s
            self._store(running, Proof.failed(error, running.started_ms, seconds))

    def _store(self, running: _RunningProof, proof: Proof) -> None:
        try:
            self._file.store(running.view, proof)
        except OSError as error:
            # The result remains in memory until the server stops.
            self._context.report("for a proof", error)

    def _expect_open(self) -> None:
        if self._closed:
            raise _Cancelled

    routes = (
        Route(
            *("POST", "/v1/views/{view}/verify", ADMIN, begin_proof, "Verify a view"),
            description="Compares the view's rows with the rows derived from the log, while the view stays in use. Only"
            " one view is verified at a time. If a flow writes the view's topic, the server must run in the same"
            " process as the app: headrace run --serve.",
            parameters=(_VIEW,),
            responses={202: ResponseDoc("The proof is running; poll it with GET.", ProofStatus)},
            error_statuses=(404, 409, 503, 504),
        ),
        Route(
            *("GET", "/v1/views/{view}/verify", READ_VIEW, describe_proof, "Describe a view's verification"),
            description="Returns the state, and the last result, which survives a restart.",
            permission_name="view",
            parameters=(_VIEW,),
            responses={200: ResponseDoc("The proof's state and progress, and the last result.", ProofStatus)},
            error_statuses=(404, 503, 504),
        ),
    )
