"""Reads one view in Redis. Queries by key work for views of any size. Other queries work only for small views, whose
rows Redis returns in a few milliseconds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from headrace.clock import Clock, SystemClock
from headrace.stores.errors import QueryFailed, QueryRefused, StoreUnusable
from headrace.stores.position import ViewState
from headrace.stores.query import Query, QueryResult
from headrace.stores.reader import QueryBuilder, StoredView, StoreReader, no_text_index
from headrace.stores.redis.layout import FORMAT, Keys, Metadata, parse_metadata, read_metadata
from headrace.stores.redis.server import Server, read_with_row, scan_rows
from headrace.stores.row_json import RowJson, row_json
from headrace.stores.rows import Row
from headrace.stores.scan import select_rows, with_deadline
from headrace.stores.writer import Part

__all__ = ["RedisReader", "check_eviction", "check_format", "check_server"]

_SCAN_ROWS = 1_000
_ROWS_PER_READ_MAX = 10_000
"""Maximum rows to read at once. Reading them blocks the other clients of the server for a few milliseconds."""
_SAFE_POLICIES = ("noeviction", "volatile-")
_PART_ID = "serving.id"


class RedisReader(StoreReader):
    """The rows of a read are from the same moment, except for a ``scan`` of a large view. Such a scan fails if a swap
    replaces the rows meanwhile.
    """

    def __init__(self, address: str, prefix: str, view: str, clock: Clock | None = None) -> None:
        self._keys = Keys(prefix, view)
        self._clock = clock or SystemClock()
        self._server = Server(address, "headrace:reader")
        self.where = f"{self._server.where}, key {self._keys.serving}"

    def close(self) -> None:
        self._server.close()

    # State

    def _metadata(self) -> Metadata:
        return parse_metadata(self._server.execute(*read_metadata(self._keys)))

    def state(self, view: str) -> ViewState | None:
        return self._metadata().state(Part.SERVING)

    def views(self) -> list[StoredView]:
        """Return only the view that this reader was opened for."""
        metadata = self._metadata()
        states = ((part, metadata.state(part)) for part in Part)
        return [StoredView(self._keys.view, part, state) for part, state in states if state is not None]

    def count(self, view: str) -> int:
        return self._metadata().row_counts[Part.SERVING]

    # Rows

    def query(self, view: str, build: QueryBuilder, timeout_s: float) -> QueryResult | None:
        responses = self._server.execute(*read_metadata(self._keys))
        while True:
            state = _serving(responses)
            if state is None:
                return None
            query = build(state.schema)
            codec = row_json(state.schema)
            if query.key is not None:
                command = read_with_row(self._keys.metadata, self._keys.all_rows(), codec.key(query.key))
                responses = self._server.execute(*command)
                values = [] if responses[-1] is None else [codec.row(responses[-1])]
            else:
                self._check_size(view, query, parse_metadata(responses).row_counts[Part.SERVING])
                responses = self._server.execute(*read_metadata(self._keys, ("HVALS", self._keys.serving)))
                values = responses[-1]
            # If the schema has changed between the two reads, build the query again.
            current = _serving(responses)
            if current is not None and current.schema == state.schema:
                return self._result(current, query, codec, values, timeout_s)

    def _result(
        self, state: ViewState, query: Query, codec: RowJson, values: list[Any], timeout_s: float
    ) -> QueryResult:
        if query.key is not None:
            return QueryResult(state, query, values[: query.limit], False)
        rows: list[Row] = [*with_deadline(map(codec.row, values), self._clock, timeout_s)]
        return QueryResult(state, query, *select_rows(state.schema, rows, query))

    def _check_size(self, view: str, query: Query, rows: int) -> None:
        if query.words:
            raise no_text_index(view, self.where)
        if rows > _ROWS_PER_READ_MAX:
            raise QueryRefused(
                f"view {view!r} has {rows} rows in Redis, which can find a row only by its key; other queries scan at"
                f" most {_ROWS_PER_READ_MAX} rows",
                hint="query by key, or add a second view of the topic in SQLite or PostgreSQL",
            )

    @contextlib.contextmanager
    def scan(
        self, view: str, timeout_s: float, words: str | None = None
    ) -> Iterator[tuple[list[str], Iterator[Row]]]:
        if words is not None:
            raise no_text_index(view, self.where)
        is_small = self.count(view) <= _ROWS_PER_READ_MAX
        extra_reads = [("HVALS", self._keys.serving)] if is_small else []
        responses = self._server.execute(*read_metadata(self._keys, *extra_reads))
        state = _serving(responses)
        if state is None:
            raise QueryFailed(f"{self.where} does not serve view {view!r}")
        codec = RowJson(state.schema)
        yield (
            list(state.schema.names),
            map(codec.row, responses[-1])
            if is_small
            else self._scan(
                codec, parse_metadata(responses).fields.get(_PART_ID), self._clock.steady() + timeout_s
            ),
        )

    def _scan(self, codec: RowJson, part_id: str | None, deadline: float) -> Iterator[Row]:
        seen_keys = set[bytes]()
        cursor = b"0"
        expected_id = None if part_id is None else part_id.encode()
        while True:
            current_id, (cursor, values) = self._server.execute(
                *scan_rows(self._keys.metadata, _PART_ID, self._keys.serving, cursor, _SCAN_ROWS)
            )
            if current_id != expected_id:
                raise QueryFailed(
                    f"the rows at {self.where} were replaced during the scan, after {len(seen_keys)} rows",
                    hint="run the query again",
                )
            for key, value in zip(values[::2], values[1::2], strict=True):
                # HSCAN can return a field twice while the server resizes the hash.
                if key not in seen_keys:
                    seen_keys.add(key)
                    yield codec.row(value)
            if cursor == b"0":
                return
            if self._clock.steady() > deadline:
                raise QueryFailed(
                    f"the query exceeded its timeout and was stopped after {len(seen_keys)} rows",
                    hint="raise --timeout, or use redis-cli",
                )


def _serving(responses: list[Any]) -> ViewState | None:
    return parse_metadata(responses).state(Part.SERVING)


# Checks of a server


def check_eviction(server: Server) -> None:
    """Raise if the server evicts any key when its memory is full, because it would silently delete a whole view."""
    info = _info(server, "memory")
    policy, limit = info.get("maxmemory_policy", ""), int(info.get("maxmemory", 0))
    if limit and policy and not policy.startswith(_SAFE_POLICIES):
        raise StoreUnusable(
            f"{server.where} evicts keys at {limit} bytes of memory (maxmemory-policy {policy}), including views",
            hint="set maxmemory-policy to noeviction or to a volatile policy, which never evicts views because they"
            " have no expiry; or use another server",
        )


def check_format(server: Server, metadata: Metadata) -> None:
    if metadata.format > FORMAT:
        raise StoreUnusable(
            f"{server.where} has a view of format {metadata.format}; this release reads formats up to {FORMAT}",
            hint="use the release that wrote it, or delete the view's keys; the follower then rebuilds the view",
        )


def check_server(address: str) -> str:
    """Return the server's product and version. Raise if a follower cannot use the server."""
    server = Server(address, "headrace:doctor")
    try:
        check_eviction(server)
        info = _info(server, "server")
    finally:
        server.close()
    product = "valkey" if "valkey_version" in info else "redis"
    return f"{product} {info.get(f'{product}_version', 'of an unknown version')}"


def _info(server: Server, section: str) -> dict[str, str]:
    """Return a section of INFO. It is empty if the user has no permission for INFO."""
    try:
        lines = server.execute("INFO", section).decode().splitlines()
    except StoreUnusable:
        return {}
    return dict(line.split(":", 1) for line in lines if ":" in line)
