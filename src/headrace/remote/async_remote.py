"""A server, for programs with an event loop: as ``headrace.remote.remote``, word for word, with ``await``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from headrace.clock import Clock, SystemClock
from headrace.remote import reading, sql, writing
from headrace.remote.address import Address, Token
from headrace.remote.async_changes import AsyncChanges
from headrace.remote.async_transport import AsyncTransport
from headrace.remote.columns import data_frame
from headrace.remote.exchange import Request, json_of
from headrace.remote.page import Page, Table
from headrace.remote.position import Position
from headrace.remote.reading import Question
from headrace.remote.reading_as import Read
from headrace.remote.records import Record, RecordPage, records_page
from headrace.remote.session import After, Described, Session
from headrace.remote.sql import SqlRows, Statement
from headrace.remote.subscription import Subscription
from headrace.remote.view_list import ViewList
from headrace.remote.written import Tally, Written, WrittenMany

if TYPE_CHECKING:
    import httpx

__all__ = ["AsyncRemote", "AsyncRows", "AsyncSql", "AsyncTopic", "AsyncView"]

R = TypeVar("R")
N = TypeVar("N")
Row = dict[str, Any]


class AsyncRemote:
    """``async with AsyncRemote("http://127.0.0.1:8180", token=...) as remote``; in one event loop.

    What is read shows all that was written through the same object before: views are waited for, ``wait_s`` at most.
    What may heal is tried again for ``patience_s``. ``client`` is an ``httpx.AsyncClient`` of the caller's own.
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
        hidden = Token(token)
        # From here on no frame has it as a text.
        del token
        clock = clock or SystemClock()
        self._address = Address(url, hidden, plain_text=plain_text)
        self._session = Session(clock, wait_s, patience_s)
        self._transport = AsyncTransport(self._address, clock, client)

    async def views(self) -> list[Described]:
        found: ViewList = json_of(
            await self._transport.run(self._session.ask(Request("GET", "/v1/views"))), ViewList
        )
        return found.views

    @overload
    def view(self, name: str) -> AsyncView[Row]: ...
    @overload
    def view(self, name: str, kind: type[N]) -> AsyncView[N]: ...
    def view(self, name: str, kind: Any = None) -> AsyncView[Any]:
        """``kind`` is a class that rows are made into: a dataclass, for example. Without it they are dicts."""
        return AsyncView(self._transport, self._session, name, Read(kind))

    @overload
    def topic(self, name: str) -> AsyncTopic[Row]: ...
    @overload
    def topic(self, name: str, kind: type[N]) -> AsyncTopic[N]: ...
    def topic(self, name: str, kind: Any = None) -> AsyncTopic[Any]:
        return AsyncTopic(self._transport, self._session, name, Read(kind))

    def sql(self, query: str, *parameters: Any, after: After = "", wait_s: float | None = None) -> AsyncSql:
        """A SELECT over views, whatever stores they live in, with values for $1, $2, …; nothing is asked for before
        somebody wants the rows.
        """
        return AsyncSql(self._transport, self._session, Statement(query, parameters, after, wait_s))

    def forget(self) -> None:
        """From now on nothing that was written before is waited for."""
        self._session.own.forget()

    async def close(self) -> None:
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncRemote({getattr(self, '_address', '...')})"


class AsyncView(Generic[R]):
    def __init__(self, transport: AsyncTransport, session: Session, name: str, read: Read[R]) -> None:
        self.name = name
        self._transport = transport
        self._session = session
        self._read = read

    async def describe(self) -> Described:
        found: Described = await self._transport.run(self._session.described(self.name))
        return found

    async def get(self, key: Any, *, after: After = "", wait_s: float | None = None) -> R | None:
        """The row, or None. A key of several columns is a mapping of them."""
        return (await self.look(key, after=after, wait_s=wait_s))[0]

    async def look(
        self, key: Any, *, after: After = "", wait_s: float | None = None
    ) -> tuple[R | None, Position]:
        """The row or None, and the position at which that is so."""
        row, position = await self._transport.run(reading.row(self._session, self.name, key, after, wait_s))
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
        """Nothing is asked for before somebody iterates. ``begin`` is the first key, ``end`` the one behind the last;
        ``after`` a token, or None to wait for nothing.
        """
        asked = Question(self.name, filter, sort, prefix, begin, end, match, limit, page_rows, after, wait_s)
        return AsyncRows(self._transport, self._session, asked, self._read)

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
        """All rows at first, or what came behind the cursor; then every step, for ever. Connections that break are
        made again, with no step lost and none twice. ``limit`` gives the first rows by ``sort``, or by key, as they
        change; without it ``sort`` is the order of the rows at first. ``async with`` closes it.
        """
        asked = Question(self.name, filter, sort, prefix, begin, end, match, limit)
        return AsyncChanges(self._transport, Subscription(asked, self._read, cursor))

    def __repr__(self) -> str:
        return f"AsyncView({self.name!r})"


class AsyncRows(Generic[R]):
    """Rows of a view: one after the other, by page, or all together."""

    def __init__(
        self, transport: AsyncTransport, session: Session, question: Question, read: Read[R]
    ) -> None:
        self._transport = transport
        self._session = session
        self._question = question
        self._read = read

    async def pages(self) -> AsyncIterator[Page[R]]:
        """Each of one position; ``moved`` says that it is another than that of the first page."""
        left, following = self._question.limit, None
        while True:
            found: Page[Row] = await self._transport.run(
                reading.page(self._session, self._question, following)
            )
            rows = found.rows if left is None else found.rows[:left]
            yield Page([self._read.row(one) for one in rows], found.position, found.moved, found.next)
            left = None if left is None else left - len(rows)
            following = reading.going_on(following, found.next)
            if following is None or left == 0:
                return

    async def __aiter__(self) -> AsyncIterator[R]:
        async for page in self.pages():
            for row in page.rows:
                yield row

    async def first(self) -> R | None:
        asked = replace(self._question, limit=1)
        found: Page[Row] = await self._transport.run(reading.page(self._session, asked, None))
        return self._read.row(found.rows[0]) if found.rows else None

    async def table(self) -> Table:
        """All of one position, also where they are many pages."""
        found: Table = await self._transport.run(reading.table(self._session, self._question))
        return found

    async def all(self) -> list[R]:
        """As ``table``, in the caller's class."""
        return [self._read.row(one) for one in (await self.table()).rows]

    async def arrow(self) -> Any:
        return (await self.table()).arrow()

    async def pandas(self) -> Any:
        return (await self.table()).pandas()


class AsyncSql:
    """Rows of a statement; all of a view are of one position."""

    def __init__(self, transport: AsyncTransport, session: Session, statement: Statement) -> None:
        self._transport = transport
        self._session = session
        self._statement = statement

    async def rows(self) -> SqlRows:
        found: SqlRows = await self._transport.run(sql.rows(self._session, self._statement))
        return found

    async def all(self) -> list[Row]:
        """As dicts."""
        return (await self.rows()).dicts()

    async def arrow(self) -> Any:
        """A ``pyarrow.Table``; the metadata of its schema has the positions."""
        return await self._transport.run(sql.arrow(self._session, self._statement))

    async def pandas(self) -> Any:
        return data_frame(await self.arrow())


class AsyncTopic(Generic[R]):
    def __init__(self, transport: AsyncTransport, session: Session, name: str, read: Read[R]) -> None:
        self.name = name
        self._transport = transport
        self._session = session
        self._read = read

    async def write(
        self, *values: Any, request: str | None = None, headers: Mapping[str, str] | None = None
    ) -> Written:
        """Dataclasses or mappings, all of them or none. It is sent until an answer comes, and counts once;
        ``request`` is the id for that, to send the same again from another process.
        """
        return await self._write([writing.upsert(one, headers) for one in values], request)

    async def delete(self, *keys: Mapping[str, Any], request: str | None = None) -> Written:
        """Rows of a table, each by a mapping of its key's fields."""
        return await self._write([writing.deletion(one) for one in keys], request)

    async def write_many(
        self, values: Iterable[Any], *, request: str | None = None, size: int = 500
    ) -> WrittenMany:
        """Many, a request for every ``size`` of them. Begun again with the same values, size and ``request``, those
        that are written already are not written again.
        """
        tally = Tally(self.name, request or writing.new_request())
        for key, some in writing.chunks(map(writing.upsert, values), tally.request, size):
            await self._transport.run(writing.write_part(self._session, some, key, tally))
        return tally.told()

    async def _write(self, records: Sequence[Mapping[str, Any]], request: str | None) -> Written:
        found: Written = await self._transport.run(writing.write(self._session, self.name, records, request))
        return found

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
        """Committed ones, from the first that there is, from an offset of a partition, or from a time. Ends where the
        topic ends; with ``follow_s`` it looks for more after so many seconds, for ever.
        """
        left, following = limit, None
        while left is None or left > 0:
            page: RecordPage[R] = await self._transport.run(
                records_page(
                    self._session,
                    self.name,
                    self._read,
                    following,
                    partition=partition,
                    offset=offset,
                    time=time,
                    limit=page_records if left is None else min(left, page_records),
                )
            )
            some = page.records if left is None else page.records[:left]
            for one in some:
                yield one
            left = None if left is None else left - len(some)
            following = page.next
            if page.at_end:
                if follow_s is None:
                    return
                await asyncio.sleep(follow_s)

    def __repr__(self) -> str:
        return f"AsyncTopic({self.name!r})"
