"""The asyncio client. It has the same methods as ``remote.py``, with ``await``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from headrace.clock import Clock, SystemClock
from headrace.remote import queries, sql, writes
from headrace.remote.address import Address, Token
from headrace.remote.changes import AsyncChanges
from headrace.remote.columns import RowReader, data_frame
from headrace.remote.errors import Position
from headrace.remote.exchange import Request, json_of
from headrace.remote.queries import Record, RecordPage, RowQuery, records_page
from headrace.remote.results import Page, Table, Tally, Written, WrittenMany
from headrace.remote.session import After, Described, Session, ViewList
from headrace.remote.sql import SqlRows, Statement
from headrace.remote.subscription import Subscription
from headrace.remote.transport import AsyncTransport

if TYPE_CHECKING:
    import httpx

__all__ = ["AsyncRemote", "AsyncRows", "AsyncSql", "AsyncTopic", "AsyncView"]

R = TypeVar("R")
N = TypeVar("N")
Row = dict[str, Any]


class AsyncRemote:
    """``async with AsyncRemote("http://127.0.0.1:8180", token=...) as remote``. Use it in one event loop.

    Reads reflect all earlier writes through the same object: they wait up to ``wait_s`` for the view. Temporary errors
    are retried for ``patience_s``. ``client`` is an optional ``httpx.AsyncClient`` of the caller.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8180",
        *,
        token: str | None = None,
        wait_s: float = 10.0,
        patience_s: float = 30.0,
        plain_text: bool = False,
        client: httpx.AsyncClient | None = None,
        clock: Clock | None = None,
    ) -> None:
        secret_token = Token(token)
        # Delete the str, so that no stack frame contains the token from here on.
        del token
        clock = clock or SystemClock()
        self._address = Address(url, secret_token, plain_text=plain_text)
        self._session = Session(clock, wait_s, patience_s)
        self._transport = AsyncTransport(self._address, clock, client)

    async def views(self) -> list[Described]:
        result: ViewList = json_of(
            await self._transport.run(self._session.send(Request("GET", "/v1/views"))), ViewList
        )
        return result.views

    @overload
    def view(self, name: str) -> AsyncView[Row]: ...
    @overload
    def view(self, name: str, kind: type[N]) -> AsyncView[N]: ...
    def view(self, name: str, kind: Any = None) -> AsyncView[Any]:
        """``kind`` is the class of the rows, for example a dataclass. Without it, rows are dicts."""
        return AsyncView(self._transport, self._session, name, RowReader(kind))

    @overload
    def topic(self, name: str) -> AsyncTopic[Row]: ...
    @overload
    def topic(self, name: str, kind: type[N]) -> AsyncTopic[N]: ...
    def topic(self, name: str, kind: Any = None) -> AsyncTopic[Any]:
        return AsyncTopic(self._transport, self._session, name, RowReader(kind))

    def sql(self, query: str, *parameters: Any, after: After = "", wait_s: float | None = None) -> AsyncSql:
        """Prepare a SELECT over views of all stores. ``parameters`` are the values of $1, $2, …

        The request is sent when the rows are read.
        """
        return AsyncSql(self._transport, self._session, Statement(query, parameters, after, wait_s))

    def forget(self) -> None:
        """Forget earlier writes, so that reads do not wait for them."""
        self._session.own_writes.forget()

    async def close(self) -> None:
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncRemote({getattr(self, '_address', '...')})"


class AsyncView(Generic[R]):
    def __init__(self, transport: AsyncTransport, session: Session, name: str, read: RowReader[R]) -> None:
        self.name = name
        self._transport = transport
        self._session = session
        self._read = read

    async def describe(self) -> Described:
        result: Described = await self._transport.run(self._session.describe(self.name))
        return result

    async def get(self, key: Any, *, after: After = "", wait_s: float | None = None) -> R | None:
        """Return the row, or None if it does not exist. A composite key is a mapping of its columns."""
        return (await self.get_with_position(key, after=after, wait_s=wait_s))[0]

    async def get_with_position(
        self, key: Any, *, after: After = "", wait_s: float | None = None
    ) -> tuple[R | None, Position]:
        """Return the row or None, and the position of the read."""
        row, position = await self._transport.run(queries.row(self._session, self.name, key, after, wait_s))
        return (None if row is None else self._read.row(row)), position

    def rows(
        self,
        *,
        filter: str | None = None,  # noqa: A002
        sort: str | None = None,
        prefix: Any = None,
        begin: Any = None,
        end: Any = None,
        match: str | None = None,
        limit: int | None = None,
        page_rows: int | None = None,
        after: After = "",
        wait_s: float | None = None,
    ) -> AsyncRows[R]:
        """Select rows. The requests are sent when the caller iterates.

        ``begin`` (inclusive) and ``end`` (exclusive) are keys. ``after`` is a position token, or None to read without
        waiting.
        """
        query = RowQuery(self.name, filter, sort, prefix, begin, end, match, limit, page_rows, after, wait_s)
        return AsyncRows(self._transport, self._session, query, self._read)

    def changes(
        self,
        *,
        filter: str | None = None,  # noqa: A002
        sort: str | None = None,
        prefix: Any = None,
        begin: Any = None,
        end: Any = None,
        match: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> AsyncChanges[R]:
        """Subscribe to the view: return all rows, or the changes after the cursor, and then every further change.

        The iterator reconnects after an error, without losing or repeating a change. With ``limit``, follow only the
        first rows, ordered by ``sort`` or by key. Without ``limit``, ``sort`` orders only the initial rows. Use the
        iterator in an ``async with`` block, which closes it.
        """
        query = RowQuery(self.name, filter, sort, prefix, begin, end, match, limit)
        return AsyncChanges(self._transport, Subscription(query, self._read, cursor))

    def __repr__(self) -> str:
        return f"AsyncView({self.name!r})"


class AsyncRows(Generic[R]):
    """Rows of a view: one by one, by page, or all together. The requests are sent when the caller iterates."""

    def __init__(
        self, transport: AsyncTransport, session: Session, row_query: RowQuery, read: RowReader[R]
    ) -> None:
        self._transport = transport
        self._session = session
        self._row_query = row_query
        self._read = read

    async def pages(self) -> AsyncIterator[Page[R]]:
        """Yield pages, each from one position. ``moved`` is true if the first page had another position."""
        remaining, next_link = self._row_query.limit, None
        while True:
            result: Page[Row] = await self._transport.run(
                queries.page(self._session, self._row_query, next_link)
            )
            rows = result.rows if remaining is None else result.rows[:remaining]
            yield Page([self._read.row(row) for row in rows], result.position, result.moved, result.next)
            remaining = None if remaining is None else remaining - len(rows)
            next_link = queries.check_next_link(next_link, result.next)
            if next_link is None or remaining == 0:
                return

    async def __aiter__(self) -> AsyncIterator[R]:
        async for page in self.pages():
            for row in page.rows:
                yield row

    async def first(self) -> R | None:
        query = replace(self._row_query, limit=1)
        result: Page[Row] = await self._transport.run(queries.page(self._session, query, None))
        return self._read.row(result.rows[0]) if result.rows else None

    async def table(self) -> Table:
        """Return all rows, from one position."""
        result: Table = await self._transport.run(queries.table(self._session, self._row_query))
        return result

    async def all(self) -> list[R]:
        """Return all rows from one position, in the caller's class."""
        return [self._read.row(row) for row in (await self.table()).rows]

    async def arrow(self) -> Any:
        return (await self.table()).arrow()

    async def pandas(self) -> Any:
        return (await self.table()).pandas()


class AsyncSql:
    """Rows of a statement. All rows of a view are from one position."""

    def __init__(self, transport: AsyncTransport, session: Session, statement: Statement) -> None:
        self._transport = transport
        self._session = session
        self._statement = statement

    async def rows(self) -> SqlRows:
        result: SqlRows = await self._transport.run(sql.rows(self._session, self._statement))
        return result

    async def all(self) -> list[Row]:
        """Return the rows as dicts."""
        return (await self.rows()).dicts()

    async def arrow(self) -> Any:
        """Return a ``pyarrow.Table``. Its schema metadata contains the positions."""
        return await self._transport.run(sql.arrow(self._session, self._statement))

    async def pandas(self) -> Any:
        return data_frame(await self.arrow())


class AsyncTopic(Generic[R]):
    def __init__(self, transport: AsyncTransport, session: Session, name: str, read: RowReader[R]) -> None:
        self.name = name
        self._transport = transport
        self._session = session
        self._read = read

    async def write(
        self, *values: Any, request: str | None = None, headers: Mapping[str, str] | None = None
    ) -> Written:
        """Write dataclasses or mappings in one transaction.

        The request is repeated until a response arrives, and the server writes the values only once. Pass a request id
        as ``request`` to be able to repeat the write from another process.
        """
        return await self._write([writes.upsert(value, headers) for value in values], request)

    async def delete(self, *keys: Mapping[str, Any], request: str | None = None) -> Written:
        """Delete rows of a table, each by a mapping of its key fields."""
        return await self._write([writes.deletion(key) for key in keys], request)

    async def write_many(
        self, values: Iterable[Any], *, request: str | None = None, size: int = 500
    ) -> WrittenMany:
        """Write many values, ``size`` per request. A repeated call with the same values, size and ``request`` writes
        only the values that are missing.
        """
        tally = Tally(self.name, request or writes.new_request())
        for key, batch in writes.chunks(map(writes.upsert, values), tally.request, size):
            await self._transport.run(writes.write_part(self._session, batch, key, tally))
        return tally.total()

    async def _write(self, records: Sequence[Mapping[str, Any]], request: str | None) -> Written:
        result: Written = await self._transport.run(writes.write(self._session, self.name, records, request))
        return result

    async def records(
        self,
        *,
        partition: int | None = None,
        offset: int | None = None,
        time: datetime | None = None,
        limit: int | None = None,
        page_records: int = 1_000,
        follow_s: float | None = None,
    ) -> AsyncIterator[Record[R]]:
        """Yield committed records from the start, from an offset of a partition, or from a time.

        Stop at the end of the topic. With ``follow_s``, never stop, but poll for more records at this interval in
        seconds.
        """
        remaining, next_link = limit, None
        while remaining is None or remaining > 0:
            page: RecordPage[R] = await self._transport.run(
                records_page(
                    self._session,
                    self.name,
                    self._read,
                    next_link,
                    partition=partition,
                    offset=offset,
                    time=time,
                    limit=page_records if remaining is None else min(remaining, page_records),
                )
            )
            batch = page.records if remaining is None else page.records[:remaining]
            for record in batch:
                yield record
            remaining = None if remaining is None else remaining - len(batch)
            next_link = page.next
            if page.at_end:
                if follow_s is None:
                    return
                await asyncio.sleep(follow_s)

    def __repr__(self) -> str:
        return f"AsyncTopic({self.name!r})"
