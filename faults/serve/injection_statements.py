"""SQL statements that the server must refuse, or stop before they end, each with the expected error codes.

``@canary``, ``@store`` and ``@home`` are placeholders for paths, ``@hidden`` for a view that the token may not read. An
empty code means success.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["CALLS", "CATALOGUE", "REFUSED", "SALAD", "STATEMENTS", "Statement", "disguise", "mutate"]

_REFUSED, _INVALID, _LIMIT, _TIME = (
    "HR-SERVE-SQL-REFUSED",
    "HR-SERVE-SQL",
    "HR-SERVE-SQL-LIMIT",
    "HR-SERVE-SQL-TIME",
)
_ENDED, _SCOPE, _NOT_THERE = "HR-SERVE-SQL-ENDED", "HR-SERVE-SCOPE", "HR-SERVE-NOT-THERE"
_SUCCESS = ""

REFUSED = (
    "INSERT INTO notes VALUES (1)",
    "INSERT INTO notes SELECT * FROM notes",
    "UPDATE notes SET name = 'x'",
    "DELETE FROM notes",
    "TRUNCATE notes",
    "DROP VIEW notes",
    "DROP TABLE plan.t0",
    "CREATE TABLE x (a INT)",
    "CREATE OR REPLACE VIEW notes AS SELECT 1",
    "CREATE MACRO f() AS 1",
    "CREATE SECRET s (TYPE s3)",
    "CREATE SEQUENCE s",
    "ALTER TABLE notes ADD COLUMN x INT",
    "MERGE INTO notes USING notes s ON true WHEN MATCHED THEN DELETE",
    "COPY notes TO '/tmp/headrace-stolen.csv'",
    "COPY (SELECT 1) TO '/tmp/headrace-stolen.parquet' (FORMAT parquet)",
    "COPY notes FROM '/etc/passwd'",
    "EXPORT DATABASE '/tmp/headrace-stolen'",
    "IMPORT DATABASE '/tmp'",
    "ATTACH '/tmp/headrace-stolen.db'",
    "ATTACH 'host=localhost' AS p (TYPE postgres)",
    "DETACH memory",
    "USE memory",
    "PRAGMA version",
    "PRAGMA database_list",
    "PRAGMA enable_profiling = 'json'",
    "PRAGMA threads = 4",
    "INSTALL httpfs",
    "LOAD httpfs",
    "LOAD '/tmp/evil.duckdb_extension'",
    "FORCE INSTALL sqlite",
    "SET memory_limit = '100GB'",
    "SET enable_external_access = true",
    "SET GLOBAL threads = 100",
    "RESET lock_configuration",
    "SET VARIABLE x = 1",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "CHECKPOINT",
    "VACUUM",
    "ANALYZE",
    "CALL pragma_version()",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "DEALLOCATE p",
    "EXPLAIN ANALYZE SELECT 1",
    "SHOW TABLES",
    "DESCRIBE notes",
    "SUMMARIZE notes",
    "SELECT * FROM (SHOW TABLES)",
    "SELECT 1; SELECT 2",
    "SELECT 1; DROP VIEW notes",
    "WITH x AS (DELETE FROM notes RETURNING *) SELECT * FROM x",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_blob('/proc/self/environ')",
    "SELECT * FROM read_parquet('https://example.com/x.parquet')",
    "SELECT * FROM read_json('/etc/passwd')",
    "SELECT * FROM glob('/*')",
    "SELECT * FROM parquet_scan('/tmp/x')",
    "SELECT * FROM arrow_scan(1, 2, 3)",
    "SELECT * FROM python_map_function()",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM duckdb_extensions()",
    "SELECT * FROM query('DROP VIEW notes')",
    "SELECT * FROM query_table('notes')",
    "SELECT * FROM sniff_csv('/etc/passwd')",
    "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
    "SELECT * FROM sqlite_scan('/tmp/x.db', 't')",
    "SELECT * FROM postgres_query('p', 'DROP TABLE x')",
    "SELECT * FROM pg_catalog.pg_class",
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM memory.public.notes",
    "SELECT * FROM plan.t0",
    "SELECT * FROM system.main.pg_class",
    "SELECT nextval('s')",
    "SELECT getenv('HOME')",
    "SELECT pg_sleep(100)",
    "SELECT getvariable('x')",
    "SELECT current_query()",
)
"""Refused over HTTP. In PostgreSQL's protocol, some are handled without the engine, or from the visible catalogue."""

_OUTSIDE = (
    "SELECT content FROM read_text('@canary')",
    "SELECT * FROM read_csv('@canary', header = false)",
    "SELECT decode(content) FROM read_blob('@canary')",
    "SELECT (SELECT content FROM read_text('@canary')) FROM notes",
    "SELECT content FROM \"read_text\"('@canary')",
    "SELECT content FROM main.read_text('@canary')",
    "SELECT * FROM notes, LATERAL (SELECT content FROM read_text('@canary'))",
    "WITH x AS (SELECT content FROM read_text('@canary')) SELECT * FROM x",
    "SELECT * FROM glob('@home/*')",
    "SELECT * FROM sqlite_scan('@store', 'vault_accounts')",
    "SELECT 1; ATTACH '@store' AS s (TYPE sqlite)",
    "ATTACH '@store' AS s (TYPE sqlite); SELECT * FROM s.vault_accounts",
    "COPY notes TO '@home/stolen.csv'",
    "COPY (SELECT 1) TO 'stolen.csv'",
    "EXPORT DATABASE '@home/stolen'",
    "SELECT system.main.getenv('HOME')",
    "SELECT \"getenv\"('HOME')",
)
_FILES_AS_TABLES = (
    "SELECT * FROM '@canary'",
    'SELECT * FROM "@store"',
    "FROM 'stolen.csv'",
    "SELECT * FROM sqlite_master",
    "SELECT * FROM _headrace_views",
    "SELECT * FROM duckdb_tables",
    "SELECT * FROM incoming",
)
_HIDDEN = (
    "SELECT pin, holder FROM @hidden LIMIT 3",
    "SELECT count(*) FROM @hidden",
    'SELECT * FROM "@hidden"',
    "SELECT * FROM public.@hidden",
    "SELECT 1 FROM notes, @hidden",
    "SELECT (SELECT count(*) FROM @hidden)",
    "WITH a AS (SELECT * FROM @hidden) SELECT 1",
    "SELECT note_id FROM notes UNION ALL SELECT pin FROM @hidden",
    "SELECT * FROM notes WHERE EXISTS (SELECT 1 FROM @hidden)",
    "SELECT * FROM notes WHERE note_id IN (SELECT pin FROM @hidden)",
    "FROM @hidden",
    "TABLE @hidden",
    "SELECT * FROM search('@hidden', 'x')",
    "UNPIVOT @hidden ON holder",
    "SELECT * FROM notes LEFT JOIN LATERAL (SELECT * FROM @hidden) ON true",
    "SELECT * FROM/**/@hidden--",
    "SELECT note_id, row_number() OVER (ORDER BY (SELECT max(pin) FROM @hidden)) FROM notes",
)
_BOUND = (
    "WITH @hidden AS (SELECT * FROM @hidden) SELECT * FROM @hidden",
    "SELECT * FROM (WITH @hidden AS (SELECT 1 AS x) SELECT * FROM @hidden) a, @hidden b",
)
"""Statements in which a common table expression has the name of the hidden view."""
_ENDLESS = (
    "WITH RECURSIVE r(k, x) USING KEY (k) AS (SELECT 1, 1 UNION SELECT k, x + 1 FROM r) SELECT * FROM r",
    "SELECT count(*) FROM range(1000000000) a, range(1000000) b WHERE a.range + b.range = 7",
    "SELECT count(*) FROM notes, range(1000000000) a, range(1000000) b WHERE a.range + b.range + stars = 7",
    "SELECT b.range FROM range(400) a JOIN range(1000000000000) b ON b.range = a.range * 1000",
)
_GROWING = (
    "WITH RECURSIVE r AS (SELECT 1 x UNION ALL SELECT x + 1 FROM r) SELECT count(*) FROM r",
    "WITH RECURSIVE r AS (SELECT 1 x UNION ALL SELECT x + 1 FROM r) SELECT * FROM r",
    "SELECT list(range) FROM range(100000000)",
    "SELECT count(*) FROM (SELECT DISTINCT md5(range::VARCHAR) FROM range(50000000))",
)
_TOO_MUCH = (
    "SELECT * FROM range(2000)",
    "SELECT * FROM range(1000000)",
    "SELECT * FROM range(-9223372036854775808, 9223372036854775807)",
    "SELECT * FROM notes, range(5000)",
    "SELECT * FROM generate_series(0, 999999)",
    "SELECT unnest(range(9000))",
    "SELECT repeat('x', 50000) FROM range(400)",
    "SELECT 1 -- " + "x" * 100_000,
    "SELECT " + " || ".join(["'x'"] * 30_000),
)
_UNREADABLE = (
    "SELECT '",
    'SELECT "',
    "SELECT $$x",
    "SELECT $a$x$b$",
    "/* SELECT 1",
    "SELECT 1 */",
    "SELECT * FROM notes WHERE author = 'x' OR '",
    "SELECT * FROM notes WHERE author = 'x'' OR 1=1",
    "\uff33\uff25\uff2c\uff25\uff23\uff34 1",
    "SEL\u200bECT 1",
    "SELECT 1 INTO x",
    "SELECT 1e999",
    "SELECT " + "9" * 400,
    "SELECT 9223372036854775807 + 1",
    "SELECT 170141183460469231731687303715884105727 + 1",
    "SELECT 1::VARIANT",
    "SELECT no_such_column FROM notes",
    "SELECT 1" + " + 1" * 20_000,
)
_DEEP = ("SELECT " + "(SELECT " * 3_000 + "1" + ")" * 3_000,)
_HARMLESS = (
    "SELECT 'it''s; DROP TABLE notes; --' AS x",
    "SELECT 1 /* ; DELETE FROM notes */",
    'SELECT 1 AS "; DELETE FROM notes"',
    "SELECT $$'; DROP TABLE notes; --$$",
    "SELECT * FROM notes WHERE author = 'x'' OR ''1''=''1'",
    "SELECT * FROM notes WHERE stars > 99999999999999999999999999",
    "SELECT * FROM NOTES",
    "SELECT count(*) FROM notes_lake JOIN notes USING (note_id)",
    "SELECT * FROM search('notes_words', 'ada OR 1=1; DROP')",
)
CATALOGUE = (
    "SELECT relname FROM pg_class",
    "SELECT table_name FROM information_schema.tables",
    "SELECT attname FROM pg_catalog.pg_attribute",
    "SELECT * FROM pg_tables",
    "SELECT '@hidden'::regclass",
    "SELECT to_regclass('@hidden')",
    "SELECT conname FROM pg_constraint",
    "SELECT * FROM pg_database",
    "SELECT name, setting FROM pg_settings",
)
"""Accepted in PostgreSQL's protocol, where they list only what the token may read."""


@dataclass(frozen=True, slots=True)
class Statement:
    kind: str
    text: str
    codes: frozenset[str]


def _statements(kind: str, texts: tuple[str, ...], *codes: str) -> list[Statement]:
    return [Statement(kind, text, frozenset(codes)) for text in texts]


STATEMENTS: dict[str, list[Statement]] = {
    "refused": _statements("refused", REFUSED, _REFUSED),
    "outside": _statements("outside", _OUTSIDE, _REFUSED),
    "file": _statements("file", _FILES_AS_TABLES, _SCOPE),
    "hidden": _statements("hidden", _HIDDEN, _SCOPE),
    "bound": _statements("bound", _BOUND, _INVALID),
    "endless": _statements("endless", _ENDLESS, _TIME),
    "growing": _statements("growing", _GROWING, _TIME, _LIMIT, _ENDED),
    "too much": _statements("too much", _TOO_MUCH, _LIMIT),
    "unreadable": _statements("unreadable", _UNREADABLE, _INVALID),
    "deep": _statements("deep", _DEEP, _INVALID, _REFUSED),
    "harmless": [
        *_statements("harmless", _HARMLESS, _SUCCESS),
        # DuckDB accepts a no-break space as a space, but not after a quotation mark in a comment.
        *_statements("harmless", ("SELECT\u00a0count(*) FROM notes",), _SUCCESS, _INVALID),
    ],
}
CALLS = frozenset({_SUCCESS, _REFUSED, _INVALID, _SCOPE, _NOT_THERE, _LIMIT, _TIME, "HR-VIEW-QUESTION"})
"""Codes that a randomly assembled statement can get."""

SALAD = (
    *("SELECT", "*", "FROM", "notes", "notes_lake", "WHERE", "author", "note_id", "=", "'x'", "1", "(", ")", ",", ";"),
    *("UNION ALL", "INSERT INTO", "DELETE FROM", "UPDATE", "SET", "DROP TABLE", "CREATE TABLE x AS", "COPY", "TO"),
    *("'@home/stolen.csv'", "'@canary'", "ATTACH", "PRAGMA", "LOAD", "INSTALL", "WITH x AS", "RETURNING *", "--", "/*"),
    *("*/", "read_text('@canary')", "plan.t0", "VALUES", "EXPLAIN", "CALL", "x", "JOIN", "ON true", "LIMIT 3", "$1"),
    *("GROUP BY ALL", "@hidden", "vault", "pin", "'", '"', "\\", "$$", "count(*)", "range(10)", "unnest([1, 2])"),
    *("ORDER BY 1", "OVER ()", "EXISTS", "LATERAL", "RECURSIVE", "search('notes_words', 'x')", "\u02bc", "\uff07"),
    *("9223372036854775808", "1e308", "-0.0", "'inf'::DOUBLE", "::JSON", "::VARIANT", "::regclass", "COLUMNS(*)", "@"),
    *("\u00a0", "null"),
)  # fmt: skip
_HOMOGLYPHS = {
    "a": "\u0430",
    "c": "\u0441",
    "e": "\u0435",
    "o": "\u043e",
    "k": "\u212a",
    "l": "\u217c",
    "t": "\uff54",
}
_PREFIXES = ("", "  ", "/* x */ ", "-- y\n", "\t\n", "/* '; */ ", "--'\n", "/*!50000 */ ")
_SUFFIXES = ("", " ", ";", " ;", " -- x", " /* x */", ";-- ", "\n")


def disguise(rng: random.Random, text: str) -> str:
    """Return the same statement, written differently."""
    word, space, rest = text.partition(" ")
    word = rng.choice((word, word.lower(), word.swapcase()))
    suffix = rng.choice(_SUFFIXES) if "--" not in text and "'" not in text[-1:] else ""
    return (
        rng.choice(_PREFIXES)
        + word
        + (rng.choice((space, "\n", "\t", "/**/")) if space else "")
        + rest
        + suffix
    )


def _drop(rng: random.Random, text: str) -> str:
    at = rng.randrange(len(text))
    return text[:at] + text[at + rng.randint(1, 8) :]


def _insert(rng: random.Random, text: str) -> str:
    at = rng.randrange(len(text))
    return f"{text[:at]} {rng.choice(SALAD)} {text[at:]}"


def _insert_homoglyphs(rng: random.Random, text: str) -> str:
    letters = [letter for letter in _HOMOGLYPHS if letter in text]
    letter = rng.choice(letters or [" "])
    return text.replace(letter, _HOMOGLYPHS.get(letter, "\u2003"), rng.randint(1, 3))


_MUTATIONS: tuple[Callable[[random.Random, str], str], ...] = (_drop, _insert, _insert, _insert_homoglyphs)


def mutate(rng: random.Random) -> str:
    """Return a random statement: a known statement with changed parts, or random words."""
    if rng.random() < 0.5:
        return " ".join(rng.choices(SALAD, k=rng.randint(1, 14)))
    kind = rng.choice(("refused", "outside", "file", "hidden", "bound", "unreadable", "harmless"))
    text = rng.choice([statement.text for statement in STATEMENTS[kind] if len(statement.text) < 500])
    for _ in range(rng.randint(1, 3)):
        text = rng.choice(_MUTATIONS)(rng, text) or "SELECT"
    return text
