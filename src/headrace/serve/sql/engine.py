"""One statement in an engine of its own: DuckDB in memory, shut off from everything, over copies of what it needs.

    1  each store is opened, and says where its views stand
    2  the statement is explained over empty tables: which columns and rows does it need?
    3  these are read, within the same transactions, into the engine's memory
    4  the stores are left, and the statement runs

So a position holds for the whole statement, however long it runs, and no store is held up by it. A column that is not
needed is not there: should it be asked for all the same, that is an error, not a wrong answer.
"""

from __future__ import annotations

import contextlib
import resource
import threading
from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import msgspec
import pyarrow as pa

from headrace.clock import Clock
from headrace.serve.errors import NotServing, ViewMoved
from headrace.serve.pgwire.catalogue import build
from headrace.serve.pgwire.parameters import put_parameters
from headrace.serve.pgwire.turning import turn, without_rows
from headrace.serve.sql.column_types import arrow_schema, engine_type, quoted
from headrace.serve.sql.errors import SqlRefused, SqlTooLong, SqlTooMuch, SqlUnfit
from headrace.serve.sql.messages import Source, Stood, ToAnswer
from headrace.serve.sql.planning import Need, needs_of
from headrace.serve.sql.reading import Reading, not_built, opened
from headrace.serve.sql.statement import Statement, read_statement
from headrace.views.position import Position, Shape, Standing

__all__ = ["Engine", "Ran", "troubles"]

_TRIES = 3
_CONFIG = {
    "access_mode": "automatic",
    "allow_community_extensions": "false",
    "allow_unsigned_extensions": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "enable_external_access": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
    "threads": "2",
}
_WRITTEN = "SELECT json_deserialize_sql(?::JSON)"
_STREAMED = {
    "INTERRUPT Error": duckdb.InterruptException,
    "Out of Memory Error": duckdb.OutOfMemoryException,
}


class Ran:
    """A statement that gives its rows, a piece at a time."""

    def __init__(
        self, columns: list[tuple[str, str]], reader: pa.RecordBatchReader, stood: list[Stood]
    ) -> None:
        self.columns = columns
        """Names and the engine's types."""
        self.reader = reader
        self.stood = stood


class _Moved(Exception):
    """A view has other columns, or another position, than it had a moment ago."""


class Engine:
    def __init__(self, memory_bytes: int) -> None:
        self.connection = duckdb.connect(
            ":memory:", config={**_CONFIG, "memory_limit": f"{max(16, memory_bytes >> 20)}MiB"}
        )
        for statement in (
            "SET TimeZone = 'UTC'",
            "SET disabled_optimizers = 'statistics_propagation,empty_result_pullup'",
            "CREATE SCHEMA plan",
            "CREATE SCHEMA public",
            "SET schema = 'public'",
        ):
            self.connection.execute(statement)

    def close(self) -> None:
        self.connection.close()

    def lock(self) -> None:
        """No setting can be changed any more."""
        self.connection.execute("SET lock_configuration = true")

    def read(self, sql: str, *, catalogue: bool = False) -> Statement:
        return read_statement(self.connection, sql, catalogue=catalogue)

    @contextlib.contextmanager
    def running(self, ask: ToAnswer, clock: Clock, kept: dict[str, Any]) -> Iterator[Ran]:
        """What cannot be answered raises: also while rows are taken."""
        deadline = clock.steady() + ask.time_s

        def left() -> float:
            seconds = deadline - clock.steady()
            if seconds <= 0:
                raise SqlTooLong(ask.time_s)
            return seconds

        with troubles(ask), _interrupted(self.connection, ask.time_s):
            sql = self._prepared(ask)
            parameters = [] if ask.wire else list(ask.parameters)
            stood = self._filled(ask, sql, parameters, left, kept)
            self.lock()
            with _nothing_opens():
                self.connection.execute(sql, parameters)
                columns = [(str(one[0]), str(one[1])) for one in self.connection.description or ()]
                with _encoding():
                    yield Ran(columns, self.connection.to_arrow_reader(2_048), stood)

    def _prepared(self, ask: ToAnswer) -> str:
        """Tables that it asks for by words get names of their own."""
        statement = self.read(ask.sql, catalogue=ask.wire)
        changed = bool(statement.searches)
        if ask.wire and turn(statement.tree, catalogue=statement.catalogue):
            build(self.connection, ask.listed, ask.user, ask.database)
            changed = True
        if ask.parameters and ask.wire:
            put_parameters(statement.tree, ask.parameters, ask.parameter_types)
            changed = True
        if ask.looks:
            without_rows(statement.tree)
            changed = True
        if not changed:
            return ask.sql
        for node in statement.searches:
            view, words = (one["value"]["value"] for one in node.pop("function")["children"])
            node |= {
                "type": "BASE_TABLE",
                "catalog_name": "",
                "schema_name": "public",
                "table_name": searched(view, words),
                "alias": node.get("alias") or "search",
                "column_name_alias": node.get("column_name_alias") or [],
                "at_clause": None,
            }
        tree = msgspec.json.encode({"error": False, "statements": [statement.tree]}).decode()
        return str(self._one(_WRITTEN, tree))

    def _one(self, sql: str, *parameters: Any) -> Any:
        found = self.connection.execute(sql, list(parameters)).fetchone()
        assert found is not None
        return found[0]

    # What it is about

    def _filled(
        self, ask: ToAnswer, sql: str, parameters: list[Any], left: Callable[[], float], kept: dict[str, Any]
    ) -> list[Stood]:
        for _ in range(_TRIES):
            with contextlib.ExitStack() as stack:
                readings: dict[str, Reading] = {}
                for source in ask.sources:
                    if source.store not in readings:
                        readings[source.store] = stack.enter_context(opened(source, left, kept))
                try:
                    return self._filled_from(ask, sql, parameters, readings)
                except _Moved:
                    self._emptied(len(ask.sources))
        raise ViewMoved("a view was replaced while it was read, again and again", hint="ask again")

    def _filled_from(
        self, ask: ToAnswer, sql: str, parameters: list[Any], readings: dict[str, Reading]
    ) -> list[Stood]:
        standings = [self._standing(one, readings[one.store]) for one in ask.sources]
        shapes = [one.shape for one in standings]
        for at, (source, shape) in enumerate(zip(ask.sources, shapes, strict=True)):
            self._declare(at, source, shape)
        needs = needs_of(self.connection, sql, parameters, shapes)
        found: dict[str, Position] = {}
        stood = []
        for at, (source, shape, need) in enumerate(zip(ask.sources, shapes, needs, strict=True)):
            standing = self._copied(at, source, shape, need, readings[source.store])
            if found.setdefault(source.view, standing.position) != standing.position:
                raise _Moved
            self._declare(at, source, shape, need.columns)
            stood.append(Stood(source.name, standing.position, shape.tell()))
        return [one for at, one in enumerate(stood) if not ask.sources[at].words]

    @staticmethod
    def _standing(source: Source, reading: Reading) -> Standing:
        standing = reading.standing(source.view)
        if standing is None:
            raise not_built(source.view)
        if standing.fault:
            raise NotServing(f"view {source.view!r} is not as it was written: {standing.fault}")
        names = [one.lower() for one in standing.shape.names]
        if len({*names}) < len(names):
            raise SqlRefused(
                f"view {source.view!r} has columns that differ by large and small letters only, which SQL does not"
            )
        return standing

    def _declare(self, at: int, source: Source, shape: Shape, there: tuple[int, ...] | None = None) -> None:
        """The table, empty, and the view upon it that has the names; later again, without what was not read."""
        if there is None:
            columns = ", ".join(f"c{n} {engine_type(one)}" for n, one in enumerate(shape.fields))
            self.connection.execute(f"CREATE TABLE plan.t{at} ({columns})")
        selected = ", ".join(
            f"c{n} AS {quoted(one.name)}"
            if there is None or n in there
            else f"error('column was not read')::{engine_type(one)} AS {quoted(one.name)}"
            for n, one in enumerate(shape.fields)
        )
        name = searched(source.name, source.words) if source.words else source.name
        self.connection.execute(
            f"CREATE OR REPLACE VIEW public.{quoted(name)} AS SELECT {selected} FROM plan.t{at}"  # noqa: S608
        )

    def _emptied(self, count: int) -> None:
        for at in range(count):
            self.connection.execute(f"DROP TABLE IF EXISTS plan.t{at}")

    def _copied(self, at: int, source: Source, shape: Shape, need: Need, reading: Reading) -> Standing:
        read = reading.read(source.view, need, source.words)
        if read.standing.shape != shape:
            raise _Moved
        trouble: list[BaseException] = []

        def batches() -> Iterator[pa.RecordBatch]:
            # Through the engine an error would come without its kind.
            try:
                yield from read.batches
            except BaseException as error:
                trouble.append(error)
                raise

        schema = arrow_schema([shape.fields[n] for n in need.columns])
        into = ", ".join(f"c{n}" for n in need.columns)
        taken = ", ".join(schema.names)
        self.connection.register("incoming", pa.RecordBatchReader.from_batches(schema, batches()))
        try:
            self.connection.execute(f"INSERT INTO plan.t{at} ({into}) SELECT {taken} FROM incoming")  # noqa: S608
        except duckdb.Error:
            if trouble:
                raise trouble[0] from None
            raise
        finally:
            self.connection.unregister("incoming")
        return read.standing


def searched(view: str, words: str) -> str:
    """What the rows of a view that have the words are called; no view's name has a colon."""
    return f"search:{view}:{words}"


@contextlib.contextmanager
def _interrupted(connection: duckdb.DuckDBPyConnection, time_s: float) -> Iterator[None]:
    timer = threading.Timer(time_s, connection.interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def _nothing_opens() -> Iterator[None]:
    """No file, no socket: the kernel gives out no descriptor any more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def _encoding() -> Iterator[None]:
    """A type or a value that Arrow, Python or JSON cannot hold is an error of the statement. The engine's own errors
    come through Arrow's stream without their kind.
    """
    try:
        yield
    except MemoryError:
        # Arrow's is an ArrowException, too.
        raise
    except (pa.ArrowException, msgspec.DecodeError, OSError, OverflowError, ValueError) as error:
        told = _first(error)
        for text, kind in _STREAMED.items():
            if text in told:
                raise kind(told) from None
        raise SqlUnfit(
            f"the answer has a value that cannot be encoded: {told}",
            hint="cast it to text: value::VARCHAR",
        ) from None


@contextlib.contextmanager
def troubles(ask: ToAnswer) -> Iterator[None]:
    """The engine's errors as ours."""
    memory = f"{ask.memory_bytes >> 20} MiB"
    try:
        yield
    except duckdb.InterruptException:
        raise SqlTooLong(ask.time_s) from None
    except (duckdb.OutOfMemoryException, MemoryError):
        raise SqlTooMuch(
            f"the statement needs more than {memory} of memory",
            hint="ask for fewer columns or rows, or raise serve.sql_memory_mb",
        ) from None
    except (duckdb.PermissionException, duckdb.FatalException) as error:
        raise SqlRefused(f"that is not allowed here: {_first(error)}") from None
    except duckdb.Error as error:
        raise SqlUnfit(f"the statement does not fit: {_first(error)}") from None
    except RecursionError:
        raise SqlUnfit("the statement is nested too deeply") from None


def _first(error: BaseException) -> str:
    return str(error).strip()[:600]
