"""The SQL endpoints: run a statement over HTTP, subscribe to its result, and accept PostgreSQL connections."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from headrace.broker.metrics.exposition import Exposition
from headrace.broker.net.client_limits import Account, Holder
from headrace.serve.errors import InvalidRequest, SqlInvalid, TooManySubscribers
from headrace.serve.http.context import ServeContext
from headrace.serve.http.limits import TokenQuota
from headrace.serve.http.route import (
    EVENT_STREAM,
    Body,
    Feature,
    Receive,
    Request,
    Response,
    ResponseDoc,
    Route,
    duration,
    enum,
    event_stream,
    json_response,
    text,
    wait_for_disconnect,
)
from headrace.serve.http.tokens import READ_VIEW, TokenVerifier, authorize, bearer_token
from headrace.serve.query.causality import Causality
from headrace.serve.query.position_token import (
    PositionDocument,
    PositionToken,
    merged_token,
    position_document,
)
from headrace.serve.query.position_waiter import PositionWaiter
from headrace.serve.query.views import Views
from headrace.serve.sql.pool import SqlPool
from headrace.serve.sql.service import SqlService, Statement
from headrace.serve.sql.subscription import SqlColumn, SqlSubscription
from headrace.serve.sql.wire.context import WireContext, WireMetrics
from headrace.serve.subscribe.messages import close_message
from headrace.serve.subscribe.subscriber import SubscriberEnded

if TYPE_CHECKING:
    from headrace.serve.sql.wire.listener import Listener

__all__ = ["ARROW", "SqlQueries"]

ARROW = "application/vnd.apache.arrow.stream"
_PARAMETERS_MAX = 1_000
_SUBSCRIPTIONS_MAX = 20

_decoder = msgspec.json.Decoder(Statement)


class SqlRows(msgspec.Struct, frozen=True):
    positions: Annotated[
        dict[str, PositionDocument], Meta(description="Positions by the view's name in the statement.")
    ]
    columns: list[SqlColumn]
    rows: Annotated[
        msgspec.Raw,
        Meta(
            description="Each row is an array, because a statement can return the same column name twice.",
            extra_json_schema={"type": "array", "items": {"type": "array"}},
        ),
    ]


class SqlQueries(Feature):
    """Use it in one event loop. ``unsent`` counts the bytes that clients have not read yet."""

    def __init__(
        self,
        context: ServeContext,
        tokens: TokenVerifier,
        views: Views,
        causality: Causality,
        waiter: PositionWaiter,
        unsent: Account[Holder],
    ) -> None:
        limits = context.limits
        self._context = context
        self._tokens = tokens
        self._pool = SqlPool(
            *(limits.sql_processes, limits.sql_queue_max, limits.answer_bytes_max, limits.token_share_percent)
        )
        self._service = SqlService(context, views, causality, waiter, self._pool)
        self._subscriptions = TokenQuota(
            "subscriptions to statements", _SUBSCRIPTIONS_MAX, limits.token_share_percent
        )
        self._wire = WireContext(context, tokens, self._service, unsent, WireMetrics())
        self._listener: Listener | None = None

    async def listen(self, listening_socket: socket.socket) -> None:
        """Accept connections in PostgreSQL's protocol."""
        # Import it here, because it needs DuckDB and pyarrow, which are optional.
        from headrace.serve.sql.wire.listener import Listener

        self._listener = Listener(self._wire)
        await self._listener.start(listening_socket)

    async def drain_connections(self, time_s: float) -> None:
        """Close the connections in PostgreSQL's protocol, each after its current statement."""
        if self._listener is not None:
            await self._listener.drain(time_s)

    async def close(self) -> None:
        if self._listener is not None:
            await self._listener.close()
        await self._pool.close()

    def write_metrics(self, out: Exposition) -> None:
        self._pool.write_metrics(out)
        out.single(
            *("headrace_sql_followers", "gauge", "Subscriptions to statements."), self._subscriptions.count
        )
        self._wire.metrics.write(out)

    async def run_sql(self, request: Request) -> Response:
        statement, limits = _parse(request), self._context.limits
        token = PositionToken.parse(request.parameters["after"]) if "after" in request.parameters else None
        wait_s = min(request.parameters.get("wait", limits.wait_s_default), limits.wait_s_max)
        result_format = request.parameters.get("format", "json")
        response = await self._service.answer(
            *(request.caller, statement.sql, statement.parameters, result_format, token),
            deadline=request.started_s + wait_s,
        )
        positions = {read.name: position_document(read.position) for read in response.positions}
        headers = {"Cache-Control": "private, no-cache"}
        if response.positions:
            headers["Headrace-Position"] = merged_token(read.position for read in response.positions).encode()
        if result_format == "arrow":
            headers["Headrace-Positions"] = msgspec.json.encode(positions).decode()
            return Response(response.body, 200, ARROW, headers)
        columns = [SqlColumn(column.name, column.type) for column in response.columns]
        return json_response(SqlRows(positions, columns, msgspec.Raw(response.body)), headers=headers)

    async def subscribe_sql(self, request: Request) -> Response:
        statement, caller = _parse(request), request.caller
        self._expect_free_subscription(caller.token_id)
        subscription = SqlSubscription(
            *(self._context, self._service, caller),
            functools.partial(authorize, self._tokens, bearer_token(request.headers)),
            statement,
            request.parameters.get("cursor"),
        )
        with self._subscriptions.held(caller.token_id):
            await subscription.prepare()
        return event_stream(lambda receive: self._results(request, subscription, receive))

    def _expect_free_subscription(self, token_id: str) -> None:
        self._subscriptions.expect_share(token_id)
        if self._subscriptions.is_full:
            raise TooManySubscribers(
                f"too many subscriptions to statements (limit {self._subscriptions.total})",
                hint="retry later, or derive a view with a flow and subscribe to the view",
            )

    async def _results(
        self, request: Request, subscription: SqlSubscription, receive: Receive
    ) -> AsyncGenerator[bytes]:
        async def end_on_disconnect() -> None:
            await wait_for_disconnect(receive)
            subscription.end()

        with self._subscriptions.held(request.caller.token_id):
            disconnect = asyncio.create_task(end_on_disconnect())
            try:
                async with contextlib.aclosing(subscription.messages()) as messages:
                    async for message in messages:
                        yield message.event
            except SubscriberEnded:
                pass
            except (asyncio.CancelledError, GeneratorExit):
                raise
            except Exception as error:
                request.report_failure(error)
                yield close_message(error, subscription.cursor, request.request_id).event
            finally:
                disconnect.cancel()

    routes = (
        Route(
            *("POST", "/v1/sql", READ_VIEW, run_sql, "Run a SQL query"),
            description="Runs one SELECT in DuckDB's SQL over the views of all stores. Each view is a table. The token"
            " must allow reading every view that the statement names. All rows of a view are from one position, which"
            " the response contains. Rows are arrays. search('view', 'words') returns the rows that match in the"
            " view's full-text index.",
            any_name=True,
            parameters=(
                text(
                    "after",
                    "A position token from a write or a read, or several joined by commas. The result reflects at least"
                    " these positions.",
                    chars_max=32_000,
                ),
                duration(
                    "wait",
                    "Maximum time to wait for that position (default 2s). After that, the response is 504.",
                ),
                enum("format", "Format of the response (default json).", ("json", "arrow")),
            ),
            body=Body(Statement, "A statement, and values for $1, $2, …"),
            responses={200: ResponseDoc("Rows, and the position of each view.", SqlRows)},
            error_statuses=(404, 408, 409, 413, 415, 422, 429, 501, 503, 504),
        ),
        Route(
            *("POST", "/v1/sql/changes", READ_VIEW, subscribe_sql, "Subscribe to the result of a statement"),
            description="Sends the result as server-sent events, and the whole result again whenever it changes. In"
            " each result, all rows of a view are from one position.",
            any_name=True,
            parameters=(
                text(
                    "cursor",
                    "The cursor of the last result received. The server does not send that result again.",
                    chars_max=100,
                ),
            ),
            body=Body(Statement, "A statement, and values for $1, $2, …"),
            responses={200: ResponseDoc("Events: result, same, heartbeat, bye.", media_type=EVENT_STREAM)},
            error_statuses=(404, 408, 409, 413, 415, 422, 429, 503, 504),
        ),
    )


def _parse(request: Request) -> Statement:
    try:
        statement = _decoder.decode(request.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(
            f"the body is not a statement: {error}", hint='send JSON such as {"sql": "SELECT 1"}'
        ) from None
    if len(statement.parameters) > _PARAMETERS_MAX:
        raise InvalidRequest(f"a statement has at most {_PARAMETERS_MAX} parameters")
    if any(isinstance(value, int) and not -(2**63) <= value < 2**63 for value in statement.parameters):
        raise SqlInvalid("an integer parameter has more than 64 bits")
    return statement
