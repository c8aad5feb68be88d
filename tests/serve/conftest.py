"""A log for what is served, shared with nobody else's tests."""

from __future__ import annotations

from tests.serve.sql_house import sql_app, sql_home, sql_http, sql_port
from tests.views.conftest import cluster, fresh, log

__all__ = ["cluster", "fresh", "log", "sql_app", "sql_home", "sql_http", "sql_port"]
