"""PostgreSQL's protocol from hostile clients: invalid bytes, too many, too slow, and forbidden statements."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.serve.http import Http
from faults.serve.local_server import Process
from faults.wait import until
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.errors import ConfigError
from headrace.serve.http.server import Server
from headrace.settings import ServeSettings
from tests.serve.hostile_statements import REFUSED
from tests.serve.pg_bytes import letters, message, raw, read_until, startup
from tests.serve.sql_server import connect

_HUGE = 2**31 - 1


@contextlib.contextmanager
def _connect_without_login(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), 30) as wire:
        yield wire


def test_tls_is_declined_and_a_newer_protocol_is_negotiated_down(sql_port: int) -> None:
    with _connect_without_login(sql_port) as wire:
        for code in (80_877_103, 80_877_104):
            wire.sendall(struct.pack(">ii", 8, code))
            assert wire.recv(1) == b"N"
        names = {"_pq_.new": "1"}
        wire.sendall(startup(196_610, **names))
        first, *_ = read_until(wire, b"Z")
        assert first == (b"v", struct.pack(">ii", 196_608, 1) + b"_pq_.new\0")


@pytest.mark.parametrize(
    "first",
    [
        struct.pack(">ii", _HUGE, 196_608),
        struct.pack(">i", -1),
        struct.pack(">i", 0),
        struct.pack(">ii", 8, 131_072),
        struct.pack(">ii", 8, 196_608),
        struct.pack(">ii", 8, 80_877_103) * 3,
        struct.pack(">iii", 12, 80_877_102, 1),
        struct.pack(">ii", 14, 196_608) + b"user\0\xff",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_an_invalid_startup_message_ends_the_connection_with_an_error(sql_port: int, first: bytes) -> None:
    with _connect_without_login(sql_port) as wire, contextlib.suppress(ConnectionError):
        wire.sendall(first)
        response = b""
        while chunk := wire.recv(1_000):
            response += chunk
        assert b"08P01" in response
        assert b"invalid message" in response


def test_a_client_that_is_slow_at_startup_or_within_a_message_is_closed(
    sql_port: int, sql_http: Http
) -> None:
    with (
        _connect_without_login(sql_port) as silent,
        _connect_without_login(sql_port) as half,
        raw(sql_port) as slow,
        raw(sql_port) as idle,
    ):
        half.sendall(startup()[:9])
        slow.sendall(b"Q" + struct.pack(">i", 1_000) + b"SELECT")
        for wire in (silent, half, slow):
            assert wire.recv(1) == b""
        # No deadline applies between two messages.
        idle.sendall(message(b"Q", b"\0"))
        assert letters(idle, b"Z") == b"IZ"
    assert 'headrace_pg_closed_total{why="slow to send"}' in sql_http.get("/metrics").body.decode()


@pytest.mark.parametrize("length", [_HUGE, -1, 0, 3, 1_048_577])
def test_an_invalid_length_ends_the_connection_before_the_message_is_read(sql_port: int, length: int) -> None:
    with raw(sql_port) as wire:
        wire.sendall(b"Q" + struct.pack(">i", length))
        assert letters(wire, b"E") == b"E"
        assert wire.recv(1) == b""


def test_invalid_counts_and_names_fail_only_their_statement(sql_port: int) -> None:
    with raw(sql_port) as wire:
        for sent in (
            message(b"B", b"\0nothing\0" + struct.pack(">hhh", 0, 0, 0)),
            message(b"D", b"Snothing\0"),
            message(b"E", b"nothing\0" + struct.pack(">i", 0)),
            message(b"P", b"a\0SELECT $1::BIGINT\0" + struct.pack(">hi", 1, 20))
            + message(b"B", b"\0a\0" + struct.pack(">hhhi", 1, 1, 1, 3) + b"abc" + struct.pack(">h", 0)),
            message(b"P", b"b\0SELECT $1\0" + struct.pack(">hi", 1, 1007))
            + message(
                b"B", b"\0b\0" + struct.pack(">hhhi", 1, 1, 1, 12) + struct.pack(">iii", 9, 0, 23) + b"\0\0"
            ),
            message(b"P", b"c\0" + b"SELECT 1 -- " + b"x" * 100_000 + b"\0\0\0"),
        ):
            wire.sendall(sent + message(b"S", b""))
            assert letters(wire, b"Z").endswith(b"EZ"), sent[:40]
        wire.sendall(message(b"Q", b"\0"))
        assert letters(wire, b"Z") == b"IZ"


def test_execute_with_a_row_limit_returns_rows_in_portions(sql_port: int) -> None:
    execute = [message(b"E", b"\0" + struct.pack(">i", count)) for count in (2, 2, 0, 0)]
    with raw(sql_port) as wire:
        wire.sendall(
            message(b"P", b"s\0SELECT range AS a, range AS a FROM range(5)\0\0\0")
            + message(b"D", b"Ss\0")
            + message(b"B", b"\0s\0" + struct.pack(">hhh", 0, 0, 0))
            + b"".join(execute)
            + message(b"S", b"")
        )
        messages = read_until(wire, b"Z")
        assert b"".join(letter for letter, _ in messages) == b"1tT2DDsDDsDCCZ"
        assert [body for letter, body in messages if letter == b"C"] == [b"SELECT 1\0", b"SELECT 0\0"]
        (description,) = [body for letter, body in messages if letter == b"T"]
        assert description.count(b"a\0") == 2


def test_the_memory_of_a_connection_is_bounded(sql_port: int, sql_http: Http) -> None:
    large = b"SELECT repeat('x', 9000) FROM range(900)"
    with raw(sql_port) as wire:
        wire.sendall(message(b"Q", b"BEGIN\0"))
        letters(wire, b"Z")
        ends = []
        for number in range(6):
            name = b"p%d" % number
            wire.sendall(
                message(b"P", b"\0" + large + b"\0\0\0")
                + message(b"B", name + b"\0\0" + struct.pack(">hhh", 0, 0, 0))
                + message(b"E", name + b"\0" + struct.pack(">i", 1))
                + message(b"S", b"")
            )
            ends.append(letters(wire, b"Z")[-2:])
            if ends[-1] == b"EZ":
                break
        assert ends[0] == b"sZ"
        assert ends[-1] == b"EZ"
        wire.sendall(message(b"Q", b"ROLLBACK\0"))
        assert letters(wire, b"Z") == b"CZ"
        for number in range(401):
            wire.sendall(message(b"P", b"s%d\0SELECT 1\0\0\0" % number))
        wire.sendall(message(b"S", b""))
        # The unnamed statement counts too.
        assert letters(wire, b"Z") == b"1" * 399 + b"EZ"
    until(
        lambda: "headrace_pg_kept_bytes 0" in sql_http.get("/metrics").body.decode(), "the memory to be freed"
    )


def test_connections_are_limited_but_cancel_requests_are_accepted(sql_port: int) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(raw(sql_port))
        with pytest.raises(psycopg.OperationalError, match=r"too many connections \(limit 20\)"):
            connect(sql_port)
        with _connect_without_login(sql_port) as wire:
            wire.sendall(struct.pack(">iiii", 16, 80_877_102, 1, 1))
            assert wire.recv(1) == b""

    def connects() -> bool:
        try:
            connect(sql_port).close()
        except psycopg.OperationalError:
            return False
        return True

    until(connects, "a free connection")


_WIRE_ONLY = (
    "SELECT pg_catalog.getenv('HOME')",
    "SELECT * FROM pg_read_file('/etc/passwd')",
    "SELECT pg_sleep(100)",
    "SELECT lo_import('/etc/passwd')",
    "SELECT * FROM pg_catalog.pg_shadow",
    "DECLARE c CURSOR FOR DELETE FROM lite_things",
    "DECLARE c CURSOR FOR SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM pgc.pg_class",
    "SELECT pgf_version()",
    "LISTEN x",
    "DO $$ BEGIN END $$",
    "COPY lite_things TO STDOUT",
    "COPY (SELECT 1) TO PROGRAM 'id'",
    "/* a */ -- b\n INSERT /* SELECT */ INTO lite_things VALUES (1)",
    "SELECT 1 /* ; */; DELETE FROM lite_things; SELECT 2",
    "SELECT 1; SET enable_external_access = true",
    "/* SELECT 1",
    "/* a */ /* b",
)
_ALLOWED_ON_WIRE = {"BEGIN", "COMMIT", "ROLLBACK", "DEALLOCATE p", "SELECT * FROM pg_catalog.pg_class",
                     "SELECT * FROM information_schema.tables", "RESET lock_configuration",
                     "SELECT 1; SELECT 2"}  # fmt: skip


def test_both_query_protocols_refuse_everything_but_reads(sql_port: int) -> None:
    with connect(sql_port, autocommit=True) as connection:
        for number, sql in enumerate(
            (*_WIRE_ONLY, *(statement for statement in REFUSED if statement not in _ALLOWED_ON_WIRE))
        ):
            with pytest.raises(psycopg.Error) as caught:
                # Alternate the simple and the extended protocol; the latter accepts a single statement.
                connection.execute(sql, prepare=number % 2 == 0 and ";" not in sql)
            assert caught.value.sqlstate in ("25006", "42601", "0A000", "42P01", "42704", "25P01"), (
                sql,
                caught.value,
            )
        assert connection.execute("SELECT 42").fetchone() == (42,)
    assert not [*Path("/tmp").glob("headrace-stolen*")]


@pytest.mark.parametrize(
    "text",
    ["/*" * 5_000, "$a" * 50_000, "'" * 99_999, '"' * 99_999, "-- \n" * 20_000 + "SELECT 1;", ";" * 99_999,
     "SELECT " + "(" * 40_000, "SELECT " + "-" * 90_000 + "1", "$a$" * 33_333, "E'" + "\\" * 99_997],
)  # fmt: skip
def test_a_statement_that_attacks_the_parser_is_parsed_quickly(sql_port: int, text: str) -> None:
    """A slow parser would need minutes."""
    with raw(sql_port) as wire:
        wire.settimeout(25)
        wire.sendall(message(b"Q", text.encode() + b"\0"))
        assert letters(wire, b"Z")[-1:] == b"Z"


_BODIES = st.binary(max_size=40) | st.sampled_from(
    [
        b"SELECT 1\0", b"\0\0\0\0\0", b"\0SELECT $1\0\0\0", b"\0\0\xff\xff", b"S\0", b"P\0", b"\0\x7f\xff\xff\xff",
        b"\xff\xfe\0", b"BEGIN\0", b"DECLARE c CURSOR FOR SELECT 1\0", b"FETCH c\0", b"CLOSE ALL\0",
    ]
)  # fmt: skip
_PARTS = st.builds(
    lambda letter, body, wrong: (
        letter + struct.pack(">i", wrong if wrong is not None else len(body) + 4) + body
    ),
    st.sampled_from([bytes([code]) for code in b"QPBDECSHXdcfpF"]) | st.binary(min_size=1, max_size=1),
    _BODIES,
    st.none() | st.none() | st.none() | st.integers(-(2**31), 2**31 - 1),
)


@settings(max_examples=50, deadline=None)
@given(parts=st.lists(_PARTS, max_size=6), tail=st.binary(max_size=8), logged_in=st.booleans())
def test_no_input_stops_the_server_or_causes_an_internal_error(
    sql_port: int, parts: list[bytes], tail: bytes, logged_in: bool
) -> None:
    """The fixture fails after an internal error."""
    connection = raw(sql_port) if logged_in else socket.create_connection(("127.0.0.1", sql_port), 30)
    with connection as wire, contextlib.suppress(ConnectionError):
        wire.sendall(b"".join(parts) + tail)
        wire.shutdown(socket.SHUT_WR)
        while wire.recv(65_536):
            pass
    with raw(sql_port) as wire:
        wire.sendall(message(b"Q", b"\0"))
        assert letters(wire, b"Z") == b"IZ"


def test_other_machines_need_a_token(sql_app: App, cluster: Cluster, tmp_path: Path) -> None:
    serve_settings = ServeSettings(pg_listen="0.0.0.0:0")
    with pytest.raises(ConfigError, match="no tokens"):
        Server(sql_app, cluster, tmp_path, serve_settings, "127.0.0.1:0", warn=print)


def test_the_command_listens_at_its_address_and_sends_a_close_message_when_stopped(
    cluster: Cluster, tmp_path: Path
) -> None:
    process = Process(
        "faults.serve.shop_app:app",
        cluster.bootstrap,
        tmp_path,
        ["--pg-listen", "127.0.0.1:0"],
        {"SHOP_NAME": "goodbye"},
    )
    assert process.process.stdout is not None
    line = process.process.stdout.readline().decode()
    assert "PostgreSQL protocol at 127.0.0.1:" in line
    with connect(int(line.rsplit(":", 1)[1]), autocommit=True) as connection:
        assert connection.execute("SHOW server_version").fetchone() == ("15.0",)
        assert process.stop() == 143
        with pytest.raises(psycopg.OperationalError, match="the server is stopping"):
            connection.execute("SHOW server_version")
