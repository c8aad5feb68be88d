"""Runs one SQL statement in its own in-memory DuckDB database, over copies of the rows that the statement needs.

The database has no access to files or the network. The steps are:

    1  open each store and read the columns of its views
    2  run EXPLAIN for the statement over empty tables, to find the columns and rows that it needs
    3  copy these rows into the database, in the same transactions of the stores
    4  close the stores and run the statement

All rows of a view therefore come from one position, however long the statement runs, and a statement never blocks a
store. Columns that the plan does not need are not copied. If the statement reads one of them anyway, it fails: it
never returns a wrong result.
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
from headrace.serve.errors import (
    SqlInvalid,
    SqlLimitExceeded,
    SqlRefused,
    SqlTimedOut,
    Unavailable,
    ViewChanged,
)
from headrace.serve.sql.messages import QueryRequest, Source, SourcePosition
from headrace.serve.sql.plan import table_scans
from headrace.serve.sql.result import engine_type, quoted
from headrace.serve.sql.statement import ParsedStatement, parse_statement
from headrace.serve.sql.wire.catalog import build
from headrace.serve.sql.wire.dialect import set_limit_zero, translate_tree
from headrace.serve.sql.wire.parameters import put_parameters
from headrace.stores.arrow import ArrowReader, TableScan, arrow_schema
from headrace.stores.position import Position, ViewSchema, ViewState
from headrace.stores.registry import StoreLocation, open_arrow_reader

__all__ = ["Engine", "Execution", "translate_errors"]

_ATTEMPTS = 3
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
_TREE_TO_SQL = "SELECT json_deserialize_sql(?::JSON)"
_STREAM_ERRORS = {
    "INTERRUPT Error": duckdb.InterruptException,
    "Out of Memory Error": duckdb.OutOfMemoryException,
}


class Execution:
    """A running statement. ``reader`` returns its rows in batches."""

    def __init__(
        self, columns: list[tuple[str, str]], reader: pa.RecordBatchReader, positions: list[SourcePosition]
    ) -> None:
        self.columns = columns
        """Column names and DuckDB types."""
        self.reader = reader
        self.positions = positions


class _ViewChanged(Exception):
    """A view changed its columns or position between two reads."""


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
        """Forbid further changes of DuckDB's settings."""
        self.connection.execute("SET lock_configuration = true")

    def parse(self, sql: str, *, catalogue: bool = False) -> ParsedStatement:
        return parse_statement(self.connection, sql, catalogue=catalogue)

    @contextlib.contextmanager
    def running(
        self, request: QueryRequest, clock: Clock, connections: dict[tuple[str, str], Any]
    ) -> Iterator[Execution]:
        """Run the statement. Its errors can also occur later, while the caller reads rows."""
        deadline = clock.steady() + request.time_s

        def remaining_s() -> float:
            seconds = deadline - clock.steady()
            if seconds <= 0:
                raise SqlTimedOut(request.time_s)
            return seconds

        with translate_errors(request), _interrupted(self.connection, request.time_s):
            sql = self._prepare(request)
            parameters = [] if request.is_pgwire else list(request.parameters)
            positions = self._fill(request, sql, parameters, remaining_s, connections)
            self.lock()
            with _no_descriptors():
                self.connection.execute(sql, parameters)
                columns = [(str(column[0]), str(column[1])) for column in self.connection.description or ()]
                with _encoding():
                    yield Execution(columns, self.connection.to_arrow_reader(2_048), positions)

    def _prepare(self, request: QueryRequest) -> str:
        """Return the SQL to run. Tables replace searches, and constants replace parameters of the wire protocol."""
        statement = self.parse(request.sql, catalogue=request.is_pgwire)
        changed = bool(statement.searches)
        if request.is_pgwire and translate_tree(statement.tree, catalogue=statement.catalogue):
            build(self.connection, request.listed, request.user, request.database)
            changed = True
        if request.parameters and request.is_pgwire:
            put_parameters(statement.tree, request.parameters, request.parameter_types)
            changed = True
        if request.describe_only:
            set_limit_zero(statement.tree)
            changed = True
        if not changed:
            return request.sql
        for node in statement.searches:
            view, words = (child["value"]["value"] for child in node.pop("function")["children"])
            node |= {
                "type": "BASE_TABLE",
                "catalog_name": "",
                "schema_name": "public",
                "table_name": search_table(view, words),
                "alias": node.get("alias") or "search",
                "column_name_alias": node.get("column_name_alias") or [],
                "at_clause": None,
            }
        tree = msgspec.json.encode({"error": False, "statements": [statement.tree]}).decode()
        return str(self._fetch_value(_TREE_TO_SQL, tree))

    def _fetch_value(self, sql: str, *parameters: Any) -> Any:
        row = self.connection.execute(sql, list(parameters)).fetchone()
        assert row is not None
        return row[0]

    # Copy the rows

    def _fill(
        self,
        request: QueryRequest,
        sql: str,
        parameters: list[Any],
        remaining_s: Callable[[], float],
        connections: dict[tuple[str, str], Any],
    ) -> list[SourcePosition]:
        for _ in range(_ATTEMPTS):
            with contextlib.ExitStack() as stack:
                readers: dict[StoreLocation, ArrowReader] = {}
                for source in request.sources:
                    if source.store not in readers:
                        reader = stack.enter_context(
                            open_arrow_reader(source.store, remaining_s, connections)
                        )
                        if reader is None:
                            raise _not_built(source.view)
                        readers[source.store] = reader
                try:
                    return self._fill_from(request, sql, parameters, readers)
                except _ViewChanged:
                    self._drop_tables(len(request.sources))
        raise ViewChanged(f"a view changed during each of {_ATTEMPTS} attempts to read it", hint="retry")

    def _fill_from(
        self,
        request: QueryRequest,
        sql: str,
        parameters: list[Any],
        readers: dict[StoreLocation, ArrowReader],
    ) -> list[SourcePosition]:
        schemas = [self._schema(source, readers[source.store]) for source in request.sources]
        for index, (source, schema) in enumerate(zip(request.sources, schemas, strict=True)):
            self._declare(index, source, schema)
        scans = table_scans(self.connection, sql, parameters, schemas)
        positions_by_view: dict[str, Position] = {}
        positions: list[SourcePosition] = []
        for index, (source, schema, scan) in enumerate(zip(request.sources, schemas, scans, strict=True)):
            position = self._copy(index, source, schema, scan, readers[source.store]).position
            if positions_by_view.setdefault(source.view, position) != position:
                raise _ViewChanged
            self._declare(index, source, schema, scan.columns)
            positions.append(SourcePosition(source.name, position, schema.to_json()))
        return [position for index, position in enumerate(positions) if not request.sources[index].words]

    @staticmethod
    def _schema(source: Source, reader: ArrowReader) -> ViewSchema:
        schema = _check_serving(source.view, reader.state(source.view)).schema
        names = [name.lower() for name in schema.names]
        if len({*names}) < len(names):
            raise SqlRefused(
                f"view {source.view!r} has columns whose names differ only by case; SQL ignores case"
            )
        return schema

    def _declare(
        self, index: int, source: Source, schema: ViewSchema, columns_read: tuple[int, ...] | None = None
    ) -> None:
        """Create the empty table, and a DuckDB view that shows the table's columns under their real names.

        With ``columns_read``, replace the DuckDB view by one that raises an error if any other column is read.
        """
        if columns_read is None:
            columns = ", ".join(f"c{n} {engine_type(field)}" for n, field in enumerate(schema.fields))
            self.connection.execute(f"CREATE TABLE plan.t{index} ({columns})")
        selected = ", ".join(
            f"c{n} AS {quoted(field.name)}"
            if columns_read is None or n in columns_read
            else f"error('column was not read')::{engine_type(field)} AS {quoted(field.name)}"
            for n, field in enumerate(schema.fields)
        )
        name = search_table(source.name, source.words) if source.words else source.name
        self.connection.execute(
            f"CREATE OR REPLACE VIEW public.{quoted(name)} AS SELECT {selected} FROM plan.t{index}"  # noqa: S608
        )

    def _drop_tables(self, count: int) -> None:
        for index in range(count):
            self.connection.execute(f"DROP TABLE IF EXISTS plan.t{index}")

    def _copy(
        self, index: int, source: Source, schema: ViewSchema, scan: TableScan, reader: ArrowReader
    ) -> ViewState:
        read = reader.read(source.view, scan, source.words)
        if read is None:
            raise _not_built(source.view)
        state = _check_serving(source.view, read.state)
        if state.schema != schema:
            raise _ViewChanged
        errors: list[BaseException] = []

        def batches() -> Iterator[pa.RecordBatch]:
            # Keep the original exception, because DuckDB replaces it by an exception of its own type.
            try:
                yield from read.batches
            except BaseException as error:
                errors.append(error)
                raise

        arrow = arrow_schema([schema.fields[n] for n in scan.columns])
        into = ", ".join(f"c{n}" for n in scan.columns)
        selected = ", ".join(arrow.names)
        self.connection.register("incoming", pa.RecordBatchReader.from_batches(arrow, batches()))
        try:
            self.connection.execute(f"INSERT INTO plan.t{index} ({into}) SELECT {selected} FROM incoming")  # noqa: S608
        except duckdb.Error:
            if errors:
                raise errors[0] from None
            raise
        finally:
            self.connection.unregister("incoming")
        return state


def _check_serving(view: str, state: ViewState | None) -> ViewState:
    if state is None:
        raise _not_built(view)
    if state.fault:
        raise Unavailable(f"view {view!r} has rows that do not match its position: {state.fault}")
    return state


def _not_built(view: str) -> Unavailable:
    return Unavailable(
        f"view {view!r} has no data yet",
        hint="start its follower: headrace run, or headrace view follow",
    )


def search_table(view: str, words: str) -> str:
    """Return the table name for a search. It cannot equal a view's name, which never contains a colon."""
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
def _no_descriptors() -> Iterator[None]:
    """Make the kernel refuse new file descriptors, so that the statement can open no file or socket."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def _encoding() -> Iterator[None]:
    """Report a value that Arrow, Python or JSON cannot represent as an error of the statement.

    Arrow's stream hides the type of DuckDB's errors, so this function restores the type from the message.
    """
    try:
        yield
    except MemoryError:
        # Arrow's out-of-memory error is a MemoryError and also an ArrowException.
        raise
    except (pa.ArrowException, msgspec.DecodeError, OSError, OverflowError, ValueError) as error:
        reason = _message(error)
        for text, kind in _STREAM_ERRORS.items():
            if text in reason:
                raise kind(reason) from None
        raise SqlInvalid(
            f"the result has a value that cannot be encoded: {reason}",
            hint="cast the value to text: value::VARCHAR",
        ) from None


@contextlib.contextmanager
def translate_errors(request: QueryRequest) -> Iterator[None]:
    """Translate DuckDB's errors into Headrace's errors."""
    memory = f"{request.memory_bytes >> 20} MiB"
    try:
        yield
    except duckdb.InterruptException:
        raise SqlTimedOut(request.time_s) from None
    except (duckdb.OutOfMemoryException, MemoryError):
        raise SqlLimitExceeded(
            f"the statement needs more than {memory} of memory",
            hint="select fewer columns or rows, or raise serve.sql_memory_mb",
        ) from None
    except (duckdb.PermissionException, duckdb.FatalException) as error:
        raise SqlRefused(f"the statement is not allowed: {_message(error)}") from None
    except duckdb.Error as error:
        raise SqlInvalid(f"the statement is invalid: {_message(error)}") from None
    except RecursionError:
        raise SqlInvalid("the statement is nested too deeply") from None


def _message(error: BaseException) -> str:
    return str(error).strip()[:600]
