"""The system's tables, as far as clients look at them: made of what the caller may see, in the engine's own memory.

Runs in the process that answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from headrace.model.kinds import Digits, Field
from headrace.serve.pgwire.arrays import ARRAYS
from headrace.serve.pgwire.catalogue_tables import LOOKUPS, MACROS, MADE, REGISTERS, SERVER_VERSION, TABLES
from headrace.serve.pgwire.rows import oid_of
from headrace.serve.sql.column_types import engine_type
from headrace.serve.sql.messages import Listed
from headrace.views.position import Shape

__all__ = ["SERVER_VERSION", "SETTINGS", "build"]

_FIRST_OID = 16_384
_AT_ONCE = 500
_TYPES = {
    16: ("bool", "boolean", 1, "B"), 17: ("bytea", "bytea", -1, "U"), 20: ("int8", "bigint", 8, "N"),
    21: ("int2", "smallint", 2, "N"), 23: ("int4", "integer", 4, "N"), 25: ("text", "text", -1, "S"),
    26: ("oid", "oid", 4, "N"), 114: ("json", "json", -1, "U"), 700: ("float4", "real", 4, "N"),
    701: ("float8", "double precision", 8, "N"), 1043: ("varchar", "character varying", -1, "S"),
    1082: ("date", "date", 4, "D"), 1083: ("time", "time without time zone", 8, "D"),
    1114: ("timestamp", "timestamp without time zone", 8, "D"),
    1184: ("timestamptz", "timestamp with time zone", 8, "D"), 1700: ("numeric", "numeric", -1, "N"),
    2950: ("uuid", "uuid", 16, "U"),
}  # fmt: skip
SETTINGS = {
    "server_version": SERVER_VERSION,
    "server_version_num": "150000",
    "server_encoding": "UTF8",
    "client_encoding": "UTF8",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "integer_datetimes": "on",
    "standard_conforming_strings": "on",
    "default_transaction_read_only": "on",
    "transaction_read_only": "on",
    "in_hot_standby": "off",
    "is_superuser": "off",
    "search_path": "public",
    "transaction_isolation": "read committed",
    "max_identifier_length": "63",
    "max_index_keys": "32",
    "extra_float_digits": "1",
    "application_name": "",
    "lc_collate": "C",
}


def build(connection: Any, listed: list[Listed], user: str, database: str) -> None:
    """The tables and macros, before the engine is locked."""
    made = ["CREATE SCHEMA pgc", "CREATE SCHEMA infos"]
    made += [f"CREATE TABLE pgc.{name} ({columns})" for name, columns in TABLES.items()]
    made.append("CREATE TABLE pgc.types (oid BIGINT, name VARCHAR, shown VARCHAR)")
    made += [f"CREATE {statement}" for statement in LOOKUPS]
    for name, (to_name, to_number) in REGISTERS.items():
        made.append(f"CREATE MACRO pgf_{name}_name(a) AS {to_name}")
        made.append(f"CREATE MACRO pgf_{name}_number(a) AS {to_number}")
    made += [f"CREATE MACRO pgf_{name}{body}" for name, body in MACROS.items()]
    made += [f"CREATE VIEW {name} AS {select}" for name, select in MADE.items()]
    connection.execute(";".join(made))
    rows: dict[tuple[str, ...], list[list[Any]]] = {}

    def put(table: str, **values: Any) -> None:
        rows.setdefault((table, *values), []).append([*values.values()])

    _fill(put, listed, user, database)
    for (table, *columns), some in rows.items():
        one = f"({', '.join('?' * len(columns))})"
        for at in range(0, len(some), _AT_ONCE):
            part = some[at : at + _AT_ONCE]
            into = f"INSERT INTO pgc.{table} ({', '.join(columns)}) VALUES"
            values = [value for row in part for value in row]
            connection.execute(f"{into} {', '.join([one] * len(part))}", values)


def _fill(put: Callable[..., None], listed: list[Listed], user: str, database: str) -> None:
    for oid, (name, shown, length, category) in _TYPES.items():
        array = ARRAYS[oid]
        for number, called, told in ((oid, name, shown), (array, f"_{name}", f"{shown}[]")):
            plain = number == oid
            put("types", oid=number, name=called, shown=told)
            put("pg_type", oid=number, typname=called, typnamespace=11, typowner=10, typlen=length if plain else -1,
                typtype="b", typcategory=category if plain else "A", typrelid=0, typelem=0 if plain else oid,
                typarray=array if plain else 0, typbasetype=0, typtypmod=-1, typnotnull=False,
                typcollation=100 if category == "S" else 0, typdelim=",",
                typinput="" if plain else "array_in")  # fmt: skip
    for oid, name in ((11, "pg_catalog"), (2_200, "public"), (13_000, "information_schema")):
        put("pg_namespace", oid=oid, nspname=name, nspowner=10)
    put("pg_database", oid=1, datname=database, datdba=10, encoding=6, datcollate="C", datctype="C",
        datistemplate=False, datallowconn=True)  # fmt: skip
    put("pg_roles", oid=10, rolname=user, rolsuper=False, rolinherit=True, rolcreaterole=False, rolcreatedb=False,
        rolcanlogin=True, rolconnlimit=-1, rolreplication=False, rolbypassrls=False)  # fmt: skip
    put("pg_am", oid=2, amname="heap")
    put("pg_am", oid=403, amname="btree")
    for name, value in {**SETTINGS, "user": user, "database": database}.items():
        put("pg_settings", name=name.lower(), setting=value)
    oid = _FIRST_OID
    for one in sorted(listed, key=lambda view: view.name):
        shape = Shape.told(one.shape)
        key = [at + 1 for at in shape.key_places]
        for number, kind, name in ((oid, "r", one.name), (oid + 1, "i", f"{one.name}_pkey")):
            put("pg_class", oid=number, relname=name, relnamespace=2_200, reltype=0, reloftype=0, relowner=10,
                relam=2 if kind == "r" else 403, relfilenode=0, reltablespace=0, relpages=0, reltuples=-1,
                reltoastrelid=0, relhasindex=kind == "r", relisshared=False, relpersistence="p", relkind=kind,
                relnatts=len(shape.fields), relchecks=0, relhasrules=False, relhastriggers=False,
                relhassubclass=False, relrowsecurity=False, relforcerowsecurity=False, relispopulated=True,
                relreplident="n", relispartition=False, relacl="{=r/headrace}" if kind == "r" else None)  # fmt: skip
        for at, field in enumerate(shape.fields):
            type_oid = oid_of(_spelled(field), binary=False)
            put("pg_attribute", attrelid=oid, attname=field.name, atttypid=type_oid, attlen=_TYPES[type_oid][2],
                attnum=at + 1, attndims=0, atttypmod=_modifier(field), attnotnull=at + 1 in key or not field.optional,
                atthasdef=False, atthasmissing=False, attidentity="", attgenerated="", attisdropped=False,
                attislocal=True, attcollation=100 if type_oid == 25 else 0, attstorage="p", attcompression="",
                attstattarget=-1)  # fmt: skip
        names = ", ".join(
            name if re.fullmatch(r"[a-z_][a-z0-9_]*", name) else f'"{name}"' for name in shape.key
        )
        put("pg_index", indexrelid=oid + 1, indrelid=oid, indnatts=len(key), indnkeyatts=len(key), indisunique=True,
            indnullsnotdistinct=False, indisprimary=True, indisclustered=False, indisvalid=True, indisreplident=False,
            indkey=key, indoption=[0] * len(key), indclass=[0] * len(key), indcollation=[0] * len(key))  # fmt: skip
        put("pg_constraint", oid=oid + 2, conname=f"{one.name}_pkey", connamespace=2_200, contype="p",
            condeferrable=False, condeferred=False, convalidated=True, conrelid=oid, contypid=0, conindid=oid + 1,
            conparentid=0, confrelid=0, conislocal=True, conkey=key, conbin=f"PRIMARY KEY ({names})")  # fmt: skip
        oid += 3


def _spelled(field: Field) -> str:
    return engine_type(field).replace(", ", ",")


def _modifier(field: Field) -> int:
    match field.kind:
        case Digits(precision, scale):
            return ((precision << 16) | scale) + 4
    return -1
