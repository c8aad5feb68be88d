"""Statements that the server must refuse, and keywords for random statements."""

from __future__ import annotations

from hypothesis import strategies as st

from faults.serve import injection_statements

__all__ = ["REFUSED", "WORDS"]

REFUSED = tuple(statement.replace("notes", "lite_things") for statement in injection_statements.REFUSED)

WORDS = st.sampled_from(
    [
        *(
            "SELECT",
            "*",
            "FROM",
            "lite_things",
            "WHERE",
            "thing_id",
            "=",
            "'x'",
            "1",
            "(",
            ")",
            ",",
            ";",
            "UNION ALL",
        ),
        *(
            "INSERT INTO",
            "DELETE FROM",
            "UPDATE",
            "SET",
            "DROP TABLE",
            "CREATE TABLE x AS",
            "COPY",
            "TO",
            "'/tmp/headrace-stolen'",
        ),
        *(
            "ATTACH",
            "PRAGMA",
            "LOAD",
            "INSTALL",
            "WITH x AS",
            "RETURNING *",
            "read_text('/etc/passwd')",
            "--",
            "/*",
            "*/",
        ),
        *(
            "plan.t0",
            "VALUES",
            "EXPLAIN",
            "CALL",
            "x",
            "JOIN",
            "ON true",
            "LIMIT 3",
            "GROUP BY ALL",
            "$1",
            "'",
            '"',
            "\\",
            "\x00",
        ),
    ]
)
