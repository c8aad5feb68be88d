"""The routes of views: list, describe, read a page of rows, read one row.

For views that declare a cache, responses are cached. A response depends only on the query and on the view's position.
So each cached response has the ETag of its position and is valid while the store reports that position. A cache hit
saves the query, but still reads the position from the store. Cached responses do not expire. The least recently used
response is evicted first.
"""

from __future__ import annotations

import urllib.parse
from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from headrace.broker.metrics.exposition import Exposition
from headrace.model.declarations import View
from headrace.model.schema import fields_to_json
from headrace.model.store import OnRead, SQLite
from headrace.serve.errors import InvalidRequest, NotFound
from headrace.serve.http.context import ServeContext
from headrace.serve.http.route import (
    Feature,
    Parameter,
    Request,
    Response,
    ResponseDoc,
    Route,
    boolean,
    duration,
    integer,
    json_response,
    text,
)
from headrace.serve.http.tokens import READ_VIEW
from headrace.serve.monitor.monitor import Monitor
from headrace.serve.query.causality import Causality
from headrace.serve.query.position_token import PositionDocument, PositionToken, position_document
from headrace.serve.query.position_waiter import PositionWaiter, position_timeout
from headrace.serve.query.row_page import Cursor, RowJsonText, RowPage, RowsDocument
from headrace.serve.query.views import Views, position_headers
from headrace.stores.position import ViewState
from headrace.stores.query import Query, QueryResult
from headrace.stores.reader import QueryBuilder

__all__ = ["ResponseCache", "ViewQueries"]

_CURSOR_PARAMETERS = ("filter", "sort", "prefix", "from", "to", "match")
_VIEW = text("view", "The name of a view.", chars_max=249, where="path")
_AFTER = text(
    "after",
    "A position token from a write or a read, or several tokens joined by commas. The response reflects at least"
    " these positions.",
    chars_max=32_000,
)
_WAIT = duration(
    "wait", "Maximum time to wait for the position in after (default 2s). After that, the response is 504."
)
_ROW_PARAMETERS: tuple[Parameter, ...] = (
    _VIEW,
    text(
        "prefix",
        "Only rows whose key starts with this text. For a composite key, a JSON object of its first fields.",
    ),
    text("from", "Only rows whose key is equal to or greater than this key."),
    text("to", "Only rows whose key is less than this key."),
    text(
        "filter",
        "Only rows that match. Compare columns with =, !=, <, <=, >, >=, in (...) and startswith, and combine"
        " comparisons with and, or, not and parentheses. Texts are in double quotes.",
        example='amount >= 10 and region in ("eu", "us")',
    ),
    text(
        "sort",
        "Columns to sort by. A minus sorts in descending order. Rows with equal values are sorted by key.",
        example="-amount,name",
    ),
    text("match", "Only rows with these words, best matches first. The view needs a full-text index."),
    integer("limit", "Maximum number of rows.", 1, 100_000, 100),
    text(
        "cursor",
        "Start of the page. Take it from the URL in the field next of the previous response.",
        chars_max=16_000,
    ),
    boolean("same", "Respond with 409 if the view's position changed after the first page."),
    _AFTER,
    _WAIT,
)
_READ_ERRORS = (404, 409, 422, 503, 504)


class ViewSummary(msgspec.Struct, frozen=True):
    view: str
    answered_by: str
    topic: str
    key: list[str]
    store: str


class ViewList(msgspec.Struct, frozen=True):
    app: str
    views: list[ViewSummary]


class ViewDetail(ViewSummary, frozen=True, kw_only=True):
    state: str
    behind_records: int | None
    behind_seconds: float | None
    position: PositionDocument | None
    columns: list[dict[str, Any]]
    dead: int | UnsetType = UNSET


class RowDocument(msgspec.Struct, frozen=True):
    view: str
    position: PositionDocument
    row: RowJsonText


class ViewQueries(Feature):
    """Use it in one event loop. Other features share ``causality`` and ``waiter``."""

    def __init__(
        self,
        context: ServeContext,
        views: Views,
        causality: Causality,
        waiter: PositionWaiter,
        monitor: Monitor,
    ) -> None:
        self._context = context
        self._views = views
        self._causality = causality
        self._waiter = waiter
        self._monitor = monitor
        app = context.app
        self._cache = ResponseCache((*app.views, *app.computed), context.limits.cached_bytes_max)

    def write_metrics(self, out: Exposition) -> None:
        cached = self._cache.counts()
        for index, kind, short, description in (
            (0, "gauge", "answers", "Cached responses."),
            (1, "gauge", "answer_bytes", "Bytes of cached responses."),
            (2, "counter", "answers_given_total", "Responses served from the cache."),
        ):
            out.family(f"headrace_served_view_{short}", kind, description)
            for view, counts in cached.items():
                labels = {"app": self._context.app.name, "view": view}
                out.sample(f"headrace_served_view_{short}", labels, counts[index])

    async def list_views(self, request: Request) -> Response:
        names = [name for name in self._views.names if request.caller.may(READ_VIEW, name)]
        views = [_summary(name, self._views.resolve(name)) for name in names]
        return json_response(ViewList(self._context.app.name, views))

    async def describe_view(self, request: Request) -> Response:
        name = request.path_values["view"]
        view = self._views.resolve(name)
        state = await self._state(view)
        lag = (await self._monitor.lags()).get(view.name)
        fields = fields_to_json(state.schema.fields) if state else []
        detail = ViewDetail(
            *msgspec.structs.astuple(_summary(name, view)),
            state="serving" if state else "not serving",
            behind_records=lag.records if lag else None,
            behind_seconds=None if lag is None or lag.age_s is None else round(lag.age_s, 3),
            position=position_document(state.position) if state else None,
            columns=[
                {**field, "key": state is not None and field["name"] in state.schema.key} for field in fields
            ],
            dead=state.position.dead if state and not isinstance(view.store, OnRead) else UNSET,
        )
        return json_response(detail, headers=position_headers(view.name, state).headers if state else {})

    async def read_rows(self, request: Request) -> Response:
        name, parameters, limits = request.path_values["view"], request.parameters, self._context.limits
        limit = min(parameters.get("limit", limits.rows_default), limits.rows_max)
        same = bool(parameters.get("same", False))
        if "cursor" in parameters:
            if any(repeated in parameters for repeated in _CURSOR_PARAMETERS):
                raise InvalidRequest(f"the cursor contains the query: omit {', '.join(_CURSOR_PARAMETERS)}")
            page = RowPage(Cursor.parse(parameters["cursor"], name), limit, same)
        else:
            page = RowPage.first(name, dict(parameters), limit, same=same)
        view, cached = await self._prepare(request)
        if cached is not None:
            return cached
        result = await self._query(request, view, page.query)
        path = f"/v1/views/{urllib.parse.quote(name, safe='')}/rows"
        document = page.document(path, result, limits.answer_bytes_max)
        link = {"Link": f'<{document.next}>; rel="next"'} if document.next else {}
        headers = {**position_headers(view.name, result.state).headers, **link}
        return self._cached(request, view, json_response(document, headers=headers))

    async def read_row(self, request: Request) -> Response:
        view, cached = await self._prepare(request)
        if cached is not None:
            return cached
        name, key = request.path_values["view"], request.path_values["key"]
        result = await self._query(
            request,
            view,
            lambda schema: Query(1, key=self._views.row_format(view, schema).parse_key(key)),
            by_key=True,
        )
        position = position_headers(view.name, result.state)
        if not result.rows:
            # Include the position, because the row might be written later.
            raise NotFound(
                f"view {name!r} has no row with this key",
                hint="list the rows: GET /v1/views/{view}/rows",
                members={"view": name, "position": position.document},
                headers=position.headers,
            )
        row = msgspec.Raw(self._views.row_format(view, result.state.schema).to_json(result.rows[0]))
        response = json_response(RowDocument(name, position.document, row), headers=position.headers)
        return self._cached(request, view, response)

    async def _prepare(self, request: Request) -> tuple[View, Response | None]:
        """Wait until the view reaches the position in ``after``. Return the view, and a response if no query is needed.

        This response is 304 if the caller already has the newest response, or a cached response that is still valid.
        """
        view = self._views.resolve(request.path_values["view"])
        token = _token(request)
        if token is not None:
            self._causality.check_related(view, token)
            await self._wait(request, view, token)
        etags = request.headers.get("if-none-match")
        if etags is not None or view.cached:
            state = await self._state(view)
            covers = self._causality.covers
            if (
                state is not None
                and not state.fault
                and (token is None or covers(view, state.position, token))
            ):
                headers = position_headers(view.name, state).headers
                if etags is not None and headers["ETag"] in {etag.strip() for etag in etags.split(",")}:
                    return view, Response(b"", 304, headers=headers)
                return view, self._cache.get(view.name, _cache_key(request), headers["ETag"])
        return view, None

    def _cached(self, request: Request, view: View, response: Response) -> Response:
        if view.cached:
            self._cache.put(view.name, _cache_key(request), response.headers["ETag"], response)
        return response

    async def _state(self, view: View) -> ViewState | None:
        return await self._context.run_on_store(lambda: self._views.state(view), view)

    async def _query(
        self, request: Request, view: View, build: QueryBuilder, *, by_key: bool = False
    ) -> QueryResult:
        """Query the store, and check that the result reflects ``after``.

        The store might have been restored to an earlier position after the wait.
        """
        executor, token, deadline = self._context.executor, _token(request), self._deadline(request)
        limit_s = self._context.limits.read_s
        may_inline = by_key and isinstance(view.store, SQLite)
        while True:
            with self._context.traces.step(f"query {view.name}", _span_attributes(view), "client") as span:
                if may_inline and executor.may_run_inline(view.store):
                    result = executor.run_inline(lambda: self._views.query(view, build, limit_s), view.store)
                else:
                    result = await executor.run(
                        lambda: self._views.query(view, build, limit_s), limit_s, view.store
                    )
                position = result.state.position
                span.note({"headrace.rows": len(result.rows)})
                if position.generation:
                    span.note({"headrace.generation": position.generation, "headrace.batch": position.batch})
            if token is None or self._causality.covers(view, position, token):
                return result
            if self._context.clock.steady() > deadline:
                raise position_timeout(view, position)
            await self._wait(request, view, token)

    async def _wait(self, request: Request, view: View, token: PositionToken) -> None:
        with self._context.traces.step(f"wait {view.name}", _span_attributes(view)):
            await self._waiter.wait(view, token, self._deadline(request))

    def _deadline(self, request: Request) -> float:
        limits = self._context.limits
        wait_s = min(request.parameters.get("wait", limits.wait_s_default), limits.wait_s_max)
        return request.started_s + float(wait_s)

    routes = (
        Route(
            *("GET", "/v1/views", READ_VIEW, list_views, "List the views"),
            description="The views that the token may read.",
            is_filtered=True,
            responses={200: ResponseDoc("The views.", ViewList)},
            error_statuses=(503,),
        ),
        Route(
            *("GET", "/v1/views/{view}", READ_VIEW, describe_view, "Describe a view"),
            description="Returns the view's columns, its position, and its lag behind the log.",
            permission_name="view",
            parameters=(_VIEW,),
            responses={200: ResponseDoc("The view.", ViewDetail)},
            error_statuses=(404, 503, 504),
        ),
        Route(
            *("GET", "/v1/views/{view}/rows", READ_VIEW, read_rows, "Read a view's rows"),
            description="Returns a page of rows, ordered by sort or by key. All rows of a page reflect the same"
            " position.",
            permission_name="view",
            parameters=_ROW_PARAMETERS,
            responses={
                200: ResponseDoc("A page of rows.", RowsDocument),
                304: ResponseDoc("The view is still at the position in If-None-Match."),
            },
            error_statuses=_READ_ERRORS,
        ),
        Route(
            *("GET", "/v1/views/{view}/rows/{key:path}", READ_VIEW, read_row, "Read one row"),
            permission_name="view",
            parameters=(
                _VIEW,
                text("key", "The key, in the same format as in the log.", where="path"),
                _AFTER,
                _WAIT,
            ),
            responses={
                200: ResponseDoc("The row.", RowDocument),
                304: ResponseDoc("The view is still at the position in If-None-Match."),
            },
            error_statuses=_READ_ERRORS,
        ),
    )


def _summary(name: str, view: View) -> ViewSummary:
    store = type(view.store).__name__.lower()
    return ViewSummary(name, view.name, view.topic.name, list(view.key), store)


def _cache_key(request: Request) -> str:
    """Return everything that determines a response, except the view's position."""
    parameters = sorted(
        (name, value) for name, value in request.parameters.items() if name not in ("after", "wait")
    )
    path_values = sorted(request.path_values.items())
    return msgspec.json.encode([request.route.path, path_values, parameters]).decode()


def _span_attributes(view: View) -> dict[str, str]:
    return {"headrace.view": view.name, "db.system.name": type(view.store).__name__.lower()}


def _token(request: Request) -> PositionToken | None:
    return PositionToken.parse(request.parameters["after"]) if "after" in request.parameters else None


_RESPONSE_BYTES_MAX = 1024 * 1024


class ResponseCache:
    """Use it in one event loop. ``bytes_max`` is split evenly among the views."""

    def __init__(self, views: Iterable[View], bytes_max: int) -> None:
        cached = [view for view in views if view.cached]
        self._entries_max = {view.name: view.cached for view in cached}
        self._bytes_max = bytes_max // max(1, len(cached))
        self._entries: dict[str, OrderedDict[str, tuple[str, Response]]] = {
            name: OrderedDict() for name in self._entries_max
        }
        self._bytes: Counter[str] = Counter()
        self._hits: Counter[str] = Counter()

    def get(self, view: str, query: str, etag: str) -> Response | None:
        entries = self._entries.get(view)
        if entries is None:
            return None
        entry = entries.get(query)
        if entry is None or entry[0] != etag:
            return None
        entries.move_to_end(query)
        self._hits[view] += 1
        return entry[1]

    def put(self, view: str, query: str, etag: str, response: Response) -> None:
        entries = self._entries.get(view)
        if entries is None or len(response.body) > min(_RESPONSE_BYTES_MAX, self._bytes_max):
            return
        replaced = entries.pop(query, None)
        if replaced is not None:
            self._bytes[view] -= _size(query, replaced[1])
        entries[query] = etag, response
        self._bytes[view] += _size(query, response)
        while len(entries) > self._entries_max[view] or self._bytes[view] > self._bytes_max:
            evicted, (_, old) = entries.popitem(last=False)
            self._bytes[view] -= _size(evicted, old)

    def counts(self) -> dict[str, tuple[int, int, int]]:
        """Return the number of entries, their bytes, and the number of hits, by view."""
        return {
            view: (len(entries), self._bytes[view], self._hits[view])
            for view, entries in self._entries.items()
        }


def _size(query: str, response: Response) -> int:
    return len(query) + len(response.body)
