"""A log for tests of the server."""

from __future__ import annotations

from tests.serve.dead_letter_app import dead_letters
from tests.serve.sql_server import sql_app, sql_home, sql_http, sql_port
from tests.views.conftest import cluster, fresh, log

__all__ = ["cluster", "dead_letters", "fresh", "log", "sql_app", "sql_home", "sql_http", "sql_port"]
