"""The state of a client: its time limits, the position tokens of its writes, and the columns of views."""

from __future__ import annotations

import threading
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headrace.clock import Clock
from headrace.errors import ConfigError
from headrace.model.codec.json_text import describe_python
from headrace.model.errors import ValueDoesNotFit
from headrace.remote.columns import Columns
from headrace.remote.errors import Busy, InvalidResponse, Late, Position, RemoteError
from headrace.remote.exchange import Reply, Request, RetryPolicy, Steps, json_of, send_with_retries
from headrace.remote.results import Written, WrittenMany

__all__ = [
    "After",
    "Described",
    "OwnWrites",
    "Session",
    "ViewList",
    "check_link",
    "check_positive",
    "path_of",
    "quoted",
]

After = str | Written | WrittenMany | Position | None
"""A position token, or an object that has one. An empty text means: wait only for this client's
writes. None means: do not wait."""

_WAIT_S_MAX = 25.0
"""Maximum wait of one request, because servers limit the wait. A longer wait needs several requests."""
_ANSWER_S = 20.0
_VIEWS_MAX = 1_000


class OwnWrites:
    """The position tokens of this client's writes, by topic. Thread-safe."""

    def __init__(self) -> None:
        self._tokens: dict[str, dict[int, str]] = {}
        self._unrelated: set[tuple[str, str, str]] = set()
        """View, topic and token of writes to topics that the view does not derive from."""
        self._lock = threading.Lock()

    def add(self, written: Written) -> None:
        with self._lock:
            cached = self._tokens.setdefault(written.topic, {})
            for record in written.records:
                cached[record.partition] = written.token

    def tokens_by_topic(self, view: str) -> dict[str, str]:
        """Return the tokens that the view must reflect, by topic."""
        with self._lock:
            tokens = {
                topic: ",".join(dict.fromkeys(cached.values())) for topic, cached in self._tokens.items()
            }
            return {
                topic: text for topic, text in tokens.items() if (view, topic, text) not in self._unrelated
            }

    def after(self, view: str) -> str:
        text = ",".join(self.tokens_by_topic(view).values())
        if len(text) > _CHARS_MAX:
            raise RemoteError(
                "this client wrote to so many partitions that their tokens do not fit into a request",
                hint="call forget(), or read with after=None",
            )
        return text

    def exclude(self, view: str, topic: str, text: str) -> None:
        """Remember that the view does not derive from the topic."""
        with self._lock:
            if len(self._unrelated) >= _UNRELATED_MAX:
                # Dropping these entries is safe, because the client detects them again when needed.
                self._unrelated.clear()
            self._unrelated.add((view, topic, text))

    def forget(self) -> None:
        with self._lock:
            self._tokens.clear()


class Described(msgspec.Struct, frozen=True):
    """The server's description of a view."""

    view: str
    topic: str
    key: list[str]
    store: str
    state: str = ""
    answered_by: str = ""
    behind_records: int | None = None
    behind_seconds: float | None = None
    position: Position | None = None
    columns: list[dict[str, Any]] = []


class ViewList(msgspec.Struct, frozen=True):
    app: str
    views: list[Described]


@dataclass(slots=True)
class Session:
    clock: Clock
    wait_s: float = 10.0
    """Longest wait until a view reflects a write, in seconds."""
    patience_s: float = 30.0
    """How long to retry temporary errors, in seconds."""
    own_writes: OwnWrites = field(default_factory=OwnWrites)
    _columns: dict[str, tuple[Any, Columns]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_seconds("wait_s", self.wait_s)
        check_seconds("patience_s", self.patience_s)

    def send(self, request: Request) -> Steps:
        return send_with_retries(request, RetryPolicy(self.clock, self.patience_s))

    # Views

    def read(
        self,
        view: str,
        path: str,
        query: Mapping[str, Any],
        after: After,
        wait_s: float | None,
        *,
        body: bytes | None = None,
    ) -> Steps:
        """Read a view, and wait until it reflects the token ``after`` and this client's writes. With None, do not wait.

        If the view does not derive from the topic of a write, repeat the request without the token of that write.
        """
        wait_s = self.wait_s if wait_s is None else wait_s
        check_seconds("wait_s", wait_s)
        after_token = after if isinstance(after, str) or after is None else after.token
        began = self.clock.steady()
        retry_policy = RetryPolicy(self.clock, self.patience_s)
        while True:
            own_tokens = "" if after is None else self.own_writes.after(view)
            tokens = ",".join(token for token in (after_token, own_tokens) if token)
            left_s = max(0.0, wait_s - (self.clock.steady() - began))
            request_wait_s = min(left_s, _WAIT_S_MAX)
            wait_parameters = {"after": tokens, "wait": f"{int(request_wait_s * 1_000)}ms"} if tokens else {}
            request = _read_request(
                path_of(path, {**query, **wait_parameters}), body, request_wait_s + _ANSWER_S
            )
            try:
                return (yield from send_with_retries(request, retry_policy))
            except Late as late:
                # The server can wait for less time than requested, so repeat the request while time is left.
                if late.code != "HR-SERVE-LATE" or left_s <= request_wait_s + 0.001:
                    raise
            except RemoteError as error:
                if not own_tokens or error.code not in ("HR-SERVE-AFTER", "HR-SERVE-AFTER-OUTDATED"):
                    raise
                if not (yield from self._exclude(view, path, body)):
                    raise

    def _exclude(self, view: str, path: str, body: bytes | None) -> Steps:
        """Exclude the writes that the view does not derive from. Return whether any was excluded."""
        any_excluded = False
        for topic, tokens in self.own_writes.tokens_by_topic(view).items():
            probe = path_of(path.partition("?")[0], {"after": tokens, "wait": "0ms"})
            request = _read_request(probe, body, _ANSWER_S)
            try:
                yield from self.send(request)
            except Late:
                continue
            except RemoteError as error:
                if error.code in ("HR-SERVE-AFTER", "HR-SERVE-AFTER-OUTDATED"):
                    self.own_writes.exclude(view, topic, tokens)
                    any_excluded = True
        return any_excluded

    def describe(self, view: str) -> Steps:
        reply: Reply = yield from self.send(Request("GET", f"/v1/views/{quoted(view)}"))
        return json_of(reply, Described)

    def columns(self, view: str, generation: Any = None, row: bytes | msgspec.Raw | None = None) -> Steps:
        """Return the view's columns. Read them again if they do not match the generation or the row."""
        cached = self._columns.get(view)
        if cached is not None and cached[0] == generation and (row is None or cached[1].match(row)):
            return cached[1]
        document: Described = yield from self.describe(view)
        if not document.columns:
            raise Busy(
                f"view {view!r} has no data yet",
                hint="start its follower: headrace run, or headrace view follow",
            )
        columns = Columns.from_json(document.columns, document.key)
        if len(self._columns) >= _VIEWS_MAX:
            self._columns.clear()
        self._columns[view] = (generation, columns)
        return columns

    def rows(self, view: str, generation: Any, raws: list[msgspec.Raw]) -> Steps:
        """Decode rows. Return the columns and the rows."""
        columns: Columns = yield from self.columns(view, generation, raws[0] if raws else None)
        try:
            return columns, columns.rows(raws)
        except ValueDoesNotFit as error:
            self._columns.pop(view, None)
            raise InvalidResponse(
                f"a row of view {view!r} does not match its columns: {error.message}",
                hint="retry, because the view may have been rebuilt meanwhile",
            ) from None


def _read_request(path: str, body: bytes | None, timeout_s: float) -> Request:
    if body is None:
        return Request("GET", path, timeout_s=timeout_s)
    return Request("POST", path, body, {"Content-Type": "application/json"}, timeout_s)


def quoted(name: str) -> str:
    """Escape a path segment. Escape ``.`` and ``..`` too, because they would refer to another path."""
    try:
        text = urllib.parse.quote(name, safe="")
    except (UnicodeEncodeError, TypeError):
        raise ValueDoesNotFit(f"a name or key must be a str, not {describe_python(name)}") from None
    return text.replace(".", "%2E") if text in (".", "..") else text


def path_of(path: str, query: Mapping[str, Any]) -> str:
    parameters = {name: _text(value) for name, value in query.items() if value is not None}
    if not parameters:
        return path
    return f"{path}{'&' if '?' in path else '?'}{urllib.parse.urlencode(parameters)}"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def check_link(path: str) -> str:
    """Check that a link of the server leads to the same server, so that the token is not sent elsewhere."""
    if not path.startswith("/v1/"):
        raise InvalidResponse(f"the server's link leads to another host: {path[:100]!r}")
    return path


def check_positive(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise ConfigError(f"{name} must be 1 or more, not {value}")


def check_seconds(name: str, value: float) -> None:
    if not value >= 0:
        raise ConfigError(f"{name} must be 0 or more seconds, not {value}")


_CHARS_MAX = 16_000
_UNRELATED_MAX = 10_000
