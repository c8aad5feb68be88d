"""What conversations share: whom to ask, how long to wait, what was written, and what columns views have."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headrace.clock import Clock
from headrace.errors import ConfigError
from headrace.model.errors import ValueDoesNotFit
from headrace.model.json_text import shown
from headrace.remote.columns import Columns
from headrace.remote.errors import AnswerUnfit, Busy, Late, RemoteError
from headrace.remote.exchange import Patience, Reply, Request, Steps, asked, json_of
from headrace.remote.own_writes import OwnWrites
from headrace.remote.position import Position
from headrace.remote.written import Written, WrittenMany

__all__ = ["After", "Described", "Session", "expect_ours", "expect_positive", "path_of", "quoted"]

After = str | Written | WrittenMany | Position | None
"""A token, or what has one; nothing for what was written through this client, None not to wait at all."""

_WAIT_S_MAX = 25.0
"""Of one request; a server may not wait for longer, and what waits longer asks again."""
_ANSWER_S = 20.0
_VIEWS_MAX = 1_000


class Described(msgspec.Struct, frozen=True):
    """A view, as its server tells of it."""

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


@dataclass(slots=True)
class Session:
    clock: Clock
    wait_s: float = 10.0
    """How long a view may take to show what was written."""
    patience_s: float = 30.0
    """How long what may heal is tried again."""
    own: OwnWrites = field(default_factory=OwnWrites)
    _columns: dict[str, tuple[Any, Columns]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        expect_seconds("wait_s", self.wait_s)
        expect_seconds("patience_s", self.patience_s)

    def ask(self, request: Request) -> Steps:
        return asked(request, Patience(self.clock, self.patience_s))

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
        """``after`` is what has a token, nothing for what this client wrote, or None for what there is. A view that is
        late is waited for; what the view has nothing to do with is left out. ``body`` is of a question that has one.
        """
        wait_s = self.wait_s if wait_s is None else wait_s
        expect_seconds("wait_s", wait_s)
        asked_for = after if isinstance(after, str) or after is None else after.token
        began = self.clock.steady()
        patience = Patience(self.clock, self.patience_s)
        while True:
            own = "" if after is None else self.own.after(view)
            tokens = ",".join(one for one in (asked_for, own) if one)
            left_s = max(0.0, wait_s - (self.clock.steady() - began))
            once_s = min(left_s, _WAIT_S_MAX)
            waiting = {"after": tokens, "wait": f"{int(once_s * 1_000)}ms"} if tokens else {}
            request = _question(path_of(path, {**query, **waiting}), body, once_s + _ANSWER_S)
            try:
                return (yield from asked(request, patience))
            except Late as late:
                # A server may grant less time than it was asked for.
                if late.code != "HR-SERVE-LATE" or left_s <= once_s + 0.001:
                    raise
            except RemoteError as error:
                if not own or error.code not in ("HR-SERVE-AFTER", "HR-SERVE-AFTER-OUTDATED"):
                    raise
                if not (yield from self._excepted(view, path, body)):
                    raise

    def _excepted(self, view: str, path: str, body: bytes | None) -> Steps:
        """Finds out which of this client's writes a view has nothing to do with; whether there are some."""
        found = False
        for topic, tokens in self.own.of_topics(view).items():
            asking = path_of(path.partition("?")[0], {"after": tokens, "wait": "0ms"})
            request = _question(asking, body, _ANSWER_S)
            try:
                yield from self.ask(request)
            except Late:
                continue
            except RemoteError as error:
                if error.code in ("HR-SERVE-AFTER", "HR-SERVE-AFTER-OUTDATED"):
                    self.own.except_for(view, topic, tokens)
                    found = True
        return found

    def described(self, view: str) -> Steps:
        reply: Reply = yield from self.ask(Request("GET", f"/v1/views/{quoted(view)}"))
        return json_of(reply, Described)

    def columns(self, view: str, generation: Any = None, row: bytes | msgspec.Raw | None = None) -> Steps:
        """Those that the view has now; asked for again where they are not of that generation or that row."""
        known = self._columns.get(view)
        if known is not None and known[0] == generation and (row is None or known[1].are_of(row)):
            return known[1]
        told: Described = yield from self.described(view)
        if not told.columns:
            raise Busy(f"nothing of view {view!r} can be read yet", hint="is somebody following it?")
        columns = Columns.told(told.columns, told.key)
        if len(self._columns) >= _VIEWS_MAX:
            self._columns.clear()
        self._columns[view] = (generation, columns)
        return columns

    def rows(self, view: str, generation: Any, raws: list[msgspec.Raw]) -> Steps:
        """The columns, and rows of them."""
        columns: Columns = yield from self.columns(view, generation, raws[0] if raws else None)
        try:
            return columns, columns.rows(raws)
        except ValueDoesNotFit as error:
            self._columns.pop(view, None)
            raise AnswerUnfit(
                f"a row of view {view!r} is not of its columns: {error.message}",
                hint="was it built again with others just now? then ask again",
            ) from None


def _question(path: str, body: bytes | None, within_s: float) -> Request:
    if body is None:
        return Request("GET", path, within_s=within_s)
    return Request("POST", path, body, {"Content-Type": "application/json"}, within_s)


def quoted(name: str) -> str:
    """As a part of a path; one of dots alone would be taken for a step up."""
    try:
        text = urllib.parse.quote(name, safe="")
    except (UnicodeEncodeError, TypeError):
        raise ValueDoesNotFit(f"a name or key is a text, not {shown(name)}") from None
    return text.replace(".", "%2E") if text in (".", "..") else text


def path_of(path: str, query: Mapping[str, Any]) -> str:
    told = {name: _text(value) for name, value in query.items() if value is not None}
    if not told:
        return path
    return f"{path}{'&' if '?' in path else '?'}{urllib.parse.urlencode(told)}"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def expect_ours(path: str) -> str:
    """A link that the server gave: to itself, so that no token goes elsewhere."""
    if not path.startswith("/v1/"):
        raise AnswerUnfit(f"the server's link leads elsewhere: {path[:100]!r}")
    return path


def expect_positive(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise ConfigError(f"{name} must be 1 or more, and is {value}")


def expect_seconds(name: str, value: float) -> None:
    if not value >= 0:
        raise ConfigError(f"{name} must be 0 or more seconds, and is {value}")
