"""Admission of PostgreSQL connections: silent sockets, the connection limit per access token, idle connections."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from faults.serve.http import Http
from faults.serve.local_server import served, token_for
from faults.serve.shop_app import shop
from faults.wait import until
from headrace.client.cluster import Cluster
from tests.serve.pg_bytes import letters, message, raw, read_until, startup
from tests.serve.sql_server import connect

Fresh = Callable[[str], str]


def _silent(port: int, stack: contextlib.ExitStack, count: int) -> list[socket.socket]:
    return [stack.enter_context(socket.create_connection(("127.0.0.1", port), 30)) for _ in range(count)]


def test_silent_sockets_do_not_prevent_other_clients_from_connecting(sql_port: int, sql_http: Http) -> None:
    with contextlib.ExitStack() as stack:
        first, *_ = _silent(sql_port, stack, 60)
        for _ in range(5):
            with connect(sql_port, autocommit=True) as connection:
                assert connection.execute("SHOW server_version").fetchone() == ("15.0",)
        assert first.recv(1) == b""
    assert 'headrace_pg_closed_total{why="made room"}' in sql_http.get("/metrics").body.decode()


@pytest.mark.parametrize(
    "sent",
    [
        message(b"P", b"n" * 64 + b"\0SELECT 1\0\0\0"),
        message(b"P", b"n" * 900_000 + "\N{BALLOON}".encode() + b"\0SELECT 1\0\0\0"),
        message(b"P", b"\0SELECT 1\0\0\0")
        + message(b"B", b"n" * 64 + b"\0\0" + struct.pack(">hhh", 0, 0, 0)),
    ],
    ids=["statement", "large", "portal"],
)
def test_a_name_of_more_than_63_bytes_fails_only_its_statement(sql_port: int, sent: bytes) -> None:
    with raw(sql_port) as wire:
        wire.sendall(sent + message(b"S", b""))
        *_, error, ready = read_until(wire, b"Z")
        assert (error[0], ready[0]) == (b"E", b"Z")
        assert b"C42622\0" in error[1]
        wire.sendall(message(b"Q", b"\0"))
        assert letters(wire, b"Z") == b"IZ"


def test_the_size_of_a_statement_is_counted_in_bytes(sql_port: int) -> None:
    with raw(sql_port) as wire:
        wide = "\N{BALLOON}".encode() * 25_001
        for sent in (message(b"P", b"s\0-- " + wide + b"\0\0\0"), message(b"Q", b"-- " + wide + b"\0")):
            wire.sendall(sent + message(b"S", b""))
            assert b"C54000\0" in read_until(wire, b"Z")[0][1]
            if sent[:1] == b"Q":
                letters(wire, b"Z")


def test_the_name_of_a_cursor_has_at_most_63_bytes(sql_port: int) -> None:
    with connect(sql_port) as connection, pytest.raises(psycopg.errors.NameTooLong):
        connection.execute(f'DECLARE "{"c" * 64}" CURSOR FOR SELECT 1')


def test_one_token_has_a_share_of_the_connections_and_refused_logins_are_logged_with_their_address(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    app = shop(fresh("pgshare"))
    greedy = token_for(tmp_path, "greedy", "read:view:*")
    other = token_for(tmp_path, "other", "read:view:*")
    limits = {"pg_connections": 10, "pg_connections_per_token": 2}
    with served(app, cluster, tmp_path, pg_listen="127.0.0.1:0", **limits) as http:
        port = http.server.pg_port  # type: ignore[attr-defined]
        with connect(port, password=greedy), connect(port, password=greedy):
            with pytest.raises(psycopg.OperationalError, match=r"this token \(limit 2\)"):
                connect(port, password=greedy)
            connect(port, password=other).close()
            with pytest.raises(psycopg.OperationalError, match="unknown, revoked"):
                connect(port, password="wrong")
        lines = [json.loads(line) for line in http.server_log.lines]  # type: ignore[attr-defined]
        refused = [
            (line["peer"], line["status"], line["code"]) for line in lines if line["method"] == "LOGIN"
        ]
        assert refused == [("127.0.0.1", 503, "HR-SERVE-FULL"), ("127.0.0.1", 401, "HR-SERVE-LOGIN")]
        assert {line["route"] for line in lines} == {"postgres"}


def test_an_idle_connection_is_closed_with_the_reason(cluster: Cluster, fresh: Fresh, tmp_path: Path) -> None:
    limits = {"pg_idle_ms": 200, "pg_connections_per_address": 2}
    with served(shop(fresh("pgidle")), cluster, tmp_path, pg_listen="127.0.0.1:0", **limits) as http:
        port = http.server.pg_port  # type: ignore[attr-defined]
        with raw(port) as wire:
            (error,) = read_until(wire, b"E")
            assert b"C57P05\0" in error[1]
            assert wire.recv(1) == b""
        with contextlib.ExitStack() as stack:
            silent = _silent(port, stack, 2)
            late = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
            late.sendall(startup())
            assert letters(late, b"Z")[-1:] == b"Z"
            assert silent[0].recv(1) == b""
        until(
            lambda: 'headrace_pg_closed_total{why="idle"}' in http.get("/metrics").body.decode(), "the count"
        )
