"""Queries the views of an app: resolves a name to the view that serves it, and reads that view's store.

Every response names the position that it reflects (``PositionHeaders``). Keys and rows have the same format as in the
log (``RowFormat``).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.errors import LogError
from headrace.client.view_names import names_of
from headrace.clock import Clock
from headrace.errors import HeadraceError
from headrace.follow.on_read import OnReadReader
from headrace.model.codec.codec import new_key_codec
from headrace.model.declarations import View
from headrace.model.errors import ValueDoesNotFit
from headrace.model.kinds import Field, Scalar
from headrace.model.schema import Schema
from headrace.model.store import OnRead
from headrace.serve.errors import InvalidRequest, NotFound, Unavailable
from headrace.serve.query.position_token import PositionDocument, position_digest, position_document, token_of
from headrace.stores.errors import StoreError, StoreGone, StoreReplaced
from headrace.stores.position import ViewSchema, ViewState
from headrace.stores.query import QueryResult
from headrace.stores.reader import QueryBuilder, StoreReader
from headrace.stores.registry import open_reader
from headrace.stores.row_json import row_json
from headrace.stores.rows import Row, to_store_value

__all__ = [
    "PositionHeaders",
    "ReaderPool",
    "RowFormat",
    "Views",
    "key_fields",
    "key_hint",
    "position_headers",
    "row_format",
    "to_utf8",
]

T = TypeVar("T")
_NAMES_MAX_AGE_S = 5.0
_HEADERS_CACHED = 64
_FORMATS_CACHED = 256


class Views:
    """Thread-safe. A method that reads a store blocks its thread."""

    def __init__(self, app: App, cluster: Cluster, data: Path, clock: Clock, readers_max: int) -> None:
        self._app = app
        self._cluster = cluster
        self._clock = clock
        self._data = data
        self._declared = {view.name: view for view in (*app.views, *app.computed)}
        self._pools = {
            view.name: ReaderPool(lambda view=view: self._open(view), readers_max)  # type: ignore[misc]
            for view in self._declared.values()
        }
        self._formats: dict[str, RowFormat] = {}
        self._switched: dict[str, str] = {}
        self._switched_read_s = 0.0
        self._refreshing = threading.Lock()
        self._read_switches()

    def _open(self, view: View) -> StoreReader | None:
        if isinstance(view.store, OnRead):
            return OnReadReader(self._cluster, view, self._app.flows, view.store.records_max, self._clock)
        return open_reader(view, self._app.name, self._data)

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()

    @property
    def names(self) -> list[str]:
        return [*self._declared]

    def resolve(self, name: str) -> View:
        """Return the view that serves ``name``. After a switch, it is not the view that was declared as ``name``."""
        if name not in self._declared:
            raise NotFound(f"view {name[:100]!r} does not exist", hint="list the views: GET /v1/views")
        return self._declared[self._recent_switches().get(name, name)]

    def _recent_switches(self) -> dict[str, str]:
        """Return the view that serves each switched name. While the log responds, this is at most a few seconds old.

        A background thread refreshes the switches, because reads must work while the log does not respond.
        """
        age_s = self._clock.steady() - self._switched_read_s
        if age_s > _NAMES_MAX_AGE_S and self._refreshing.acquire(blocking=False):
            threading.Thread(target=self._refresh_switches, name="serve names", daemon=True).start()
        return self._switched

    def _refresh_switches(self) -> None:
        try:
            self._read_switches()
        finally:
            self._refreshing.release()

    def _read_switches(self) -> None:
        try:
            names = names_of(self._cluster, self._app.name)
            self._switched = {name: view for name, view in names.items() if view in self._declared}
        except LogError:
            pass  # Keep the last known switches.
        finally:
            self._switched_read_s = self._clock.steady()

    def state(self, view: View) -> ViewState | None:
        """Return the state, or None if no follower has built the view yet."""
        return self._pools[view.name].use(lambda reader: reader.state(view.name))

    def row_format(self, view: View, schema: ViewSchema) -> RowFormat:
        """Return the format of the view's rows. Schemas are compared by identity, because a store returns the same
        object while the schema does not change.
        """
        cached = self._formats.get(view.name)
        if cached is None or cached.schema is not schema:
            cached = self._formats[view.name] = row_format(schema)
        return cached

    def query(self, view: View, build: QueryBuilder, timeout_s: float) -> QueryResult:
        result = self._pools[view.name].use(lambda reader: reader.query(view.name, build, timeout_s))
        if result is None:
            raise Unavailable(
                f"view {view.name!r} has no data yet",
                hint=f"create its topic: headrace topic create {view.topic.name}"
                if isinstance(view.store, OnRead)
                else "start its follower: headrace run, or headrace view follow",
            )
        if result.state.fault:
            raise Unavailable(
                f"the rows of view {view.name!r} do not match its position: {result.state.fault}"
            )
        return result


class ReaderPool:
    """Reuses open store readers. Only one thread uses a reader at a time.

    ``open_reader`` returns None if the store does not exist.
    """

    def __init__(self, open_reader: Callable[[], StoreReader | None], idle_max: int) -> None:
        self._open_reader = open_reader
        self._idle_max = idle_max
        self._idle: list[StoreReader] = []
        self._lock = threading.Lock()
        self._closed = False

    @contextlib.contextmanager
    def _reader(self) -> Iterator[StoreReader | None]:
        with self._lock:
            idle = self._idle.pop() if self._idle else None
        reader = idle or self._open_reader()
        try:
            yield reader
        except BaseException as error:
            if isinstance(error, HeadraceError) and not isinstance(error, StoreError):
                # The query is invalid, but the store works, so the reader remains usable.
                self._release(reader)
            elif reader is not None:
                reader.close()
            raise
        self._release(reader)

    def use(self, read: Callable[[StoreReader], T | None]) -> T | None:
        """Call ``read`` with a reader. Return None if the store does not exist. Retry once if the store was replaced or
        its connection was lost.
        """
        try:
            with self._reader() as reader:
                return None if reader is None else read(reader)
        except (StoreReplaced, StoreGone):
            # If the database restarted, the idle connections are closed too.
            self.clear()
            with self._reader() as reader:
                return None if reader is None else read(reader)

    def _release(self, reader: StoreReader | None) -> None:
        if reader is None:
            return
        with self._lock:
            if not self._closed and len(self._idle) < self._idle_max:
                self._idle.append(reader)
                return
        reader.close()

    def clear(self) -> None:
        with self._lock:
            readers, self._idle = self._idle, []
        for reader in readers:
            reader.close()

    def close(self) -> None:
        self._closed = True
        self.clear()


@dataclass(frozen=True, slots=True)
class PositionHeaders:
    """The position of a response, as HTTP headers and as a JSON document."""

    state: ViewState
    headers: dict[str, str]
    document: PositionDocument


_latest: dict[str, PositionHeaders] = {}


def position_headers(view: str, state: ViewState) -> PositionHeaders:
    """Return the headers. They are computed once per position: a store returns the same state object until its position
    changes.
    """
    cached = _latest.get(view)
    if cached is None or cached.state is not state:
        if len(_latest) >= _HEADERS_CACHED:
            _latest.clear()
        cached = _latest[view] = _position_headers(state)
    return cached


def _position_headers(state: ViewState) -> PositionHeaders:
    position = state.position
    headers = {
        "Headrace-Position": token_of(position).encode(),
        "ETag": f'W/"{position_digest(position, state.schema)}"',
        "Cache-Control": "private, no-cache",
    }
    return PositionHeaders(state, headers, position_document(position))


class RowFormat:
    """Parses keys and formats rows of a view in requests and responses, as in the log. Thread-safe."""

    def __init__(self, schema: ViewSchema) -> None:
        self.schema = schema
        self.to_json = row_json(schema).value
        self._codec = new_key_codec(Schema("key", schema.fields), schema.key)
        # Text fields need no conversion.
        unconverted = to_store_value(Scalar("text"))
        converters = [(field.name, to_store_value(field.kind)) for field in key_fields(schema)]
        self._converters = {name: convert for name, convert in converters if convert is not unconverted}

    def parse_key(self, text: str, parameter: str = "key") -> Row:
        """Parse a key. Return the values of all its fields, in the key's order."""
        try:
            values = self._codec.decode(to_utf8(text))
        except ValueDoesNotFit as error:
            raise InvalidRequest(f"{parameter}: {error.message}", hint=key_hint(self.schema)) from None
        for name, convert in self._converters.items():
            values[name] = convert(values[name])
        return tuple([values[name] for name in self.schema.key])


@lru_cache(_FORMATS_CACHED)
def row_format(schema: ViewSchema) -> RowFormat:
    return RowFormat(schema)


def key_fields(schema: ViewSchema) -> list[Field]:
    return [schema.fields[index] for index in schema.key_indexes]


def key_hint(schema: ViewSchema) -> str:
    if len(schema.key) == 1:
        return f"the key is the text of {schema.key[0]}"
    return "the key is a JSON object of " + ", ".join(schema.key)


def to_utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("the request contains an unpaired surrogate, which is not a character") from None
