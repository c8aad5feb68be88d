"""PostgreSQL's system tables, as far as common clients read them. They list the views that the caller may read.

The tables are created in the DuckDB database of the SQL worker process.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from headrace.model.kinds import Digits, Field
from headrace.serve.sql.messages import ListedView
from headrace.serve.sql.result import engine_type
from headrace.serve.sql.wire.parameters import ARRAYS
from headrace.serve.sql.wire.rows import oid_of
from headrace.stores.position import ViewSchema

__all__ = [
    "CATALOG_VIEWS",
    "HELPER_MACROS",
    "MACROS",
    "REG_TYPES",
    "SERVER_VERSION",
    "SETTINGS",
    "TABLES",
    "build",
]

_FIRST_OID = 16_384
_ROWS_PER_INSERT = 500
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


def build(connection: Any, views: list[ListedView], user: str, database: str) -> None:
    """Create and fill the system tables, and create the macros that replace PostgreSQL's functions."""
    statements = ["CREATE SCHEMA pgc", "CREATE SCHEMA infos"]
    statements += [f"CREATE TABLE pgc.{name} ({columns})" for name, columns in TABLES.items()]
    statements.append("CREATE TABLE pgc.types (oid BIGINT, name VARCHAR, shown VARCHAR)")
    statements += [f"CREATE {statement}" for statement in HELPER_MACROS]
    for name, (to_name, to_number) in REG_TYPES.items():
        statements.append(f"CREATE MACRO pgf_{name}_name(a) AS {to_name}")
        statements.append(f"CREATE MACRO pgf_{name}_number(a) AS {to_number}")
    statements += [f"CREATE MACRO pgf_{name}{body}" for name, body in MACROS.items()]
    statements += [f"CREATE VIEW {name} AS {select}" for name, select in CATALOG_VIEWS.items()]
    connection.execute(";".join(statements))
    rows: dict[tuple[str, ...], list[list[Any]]] = {}

    def put(table: str, **values: Any) -> None:
        rows.setdefault((table, *values), []).append([*values.values()])

    _fill(put, views, user, database)
    for (table, *columns), table_rows in rows.items():
        placeholders = f"({', '.join('?' * len(columns))})"
        for at in range(0, len(table_rows), _ROWS_PER_INSERT):
            batch = table_rows[at : at + _ROWS_PER_INSERT]
            into = f"INSERT INTO pgc.{table} ({', '.join(columns)}) VALUES"
            values = [value for row in batch for value in row]
            connection.execute(f"{into} {', '.join([placeholders] * len(batch))}", values)


def _fill(put: Callable[..., None], views: list[ListedView], user: str, database: str) -> None:
    for oid, (name, shown, length, category) in _TYPES.items():
        array = ARRAYS[oid]
        for number, type_name, title in ((oid, name, shown), (array, f"_{name}", f"{shown}[]")):
            single = number == oid
            put("types", oid=number, name=type_name, shown=title)
            put("pg_type", oid=number, typname=type_name, typnamespace=11, typowner=10, typlen=length if single else -1,
                typtype="b", typcategory=category if single else "A", typrelid=0, typelem=0 if single else oid,
                typarray=array if single else 0, typbasetype=0, typtypmod=-1, typnotnull=False,
                typcollation=100 if category == "S" else 0, typdelim=",",
                typinput="" if single else "array_in")  # fmt: skip
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
    for view in sorted(views, key=lambda view: view.name):
        schema = ViewSchema.parse(view.schema)
        key = [at + 1 for at in schema.key_indexes]
        for number, kind, name in ((oid, "r", view.name), (oid + 1, "i", f"{view.name}_pkey")):
            put("pg_class", oid=number, relname=name, relnamespace=2_200, reltype=0, reloftype=0, relowner=10,
                relam=2 if kind == "r" else 403, relfilenode=0, reltablespace=0, relpages=0, reltuples=-1,
                reltoastrelid=0, relhasindex=kind == "r", relisshared=False, relpersistence="p", relkind=kind,
                relnatts=len(schema.fields), relchecks=0, relhasrules=False, relhastriggers=False,
                relhassubclass=False, relrowsecurity=False, relforcerowsecurity=False, relispopulated=True,
                relreplident="n", relispartition=False, relacl="{=r/headrace}" if kind == "r" else None)  # fmt: skip
        for at, field in enumerate(schema.fields):
            type_oid = oid_of(_type_text(field), binary=False)
            put("pg_attribute", attrelid=oid, attname=field.name, atttypid=type_oid, attlen=_TYPES[type_oid][2],
                attnum=at + 1, attndims=0, atttypmod=_modifier(field), attnotnull=at + 1 in key or not field.optional,
                atthasdef=False, atthasmissing=False, attidentity="", attgenerated="", attisdropped=False,
                attislocal=True, attcollation=100 if type_oid == 25 else 0, attstorage="p", attcompression="",
                attstattarget=-1)  # fmt: skip
        names = ", ".join(
            name if re.fullmatch(r"[a-z_][a-z0-9_]*", name) else f'"{name}"' for name in schema.key
        )
        put("pg_index", indexrelid=oid + 1, indrelid=oid, indnatts=len(key), indnkeyatts=len(key), indisunique=True,
            indnullsnotdistinct=False, indisprimary=True, indisclustered=False, indisvalid=True, indisreplident=False,
            indkey=key, indoption=[0] * len(key), indclass=[0] * len(key), indcollation=[0] * len(key))  # fmt: skip
        put("pg_constraint", oid=oid + 2, conname=f"{view.name}_pkey", connamespace=2_200, contype="p",
            condeferrable=False, condeferred=False, convalidated=True, conrelid=oid, contypid=0, conindid=oid + 1,
            conparentid=0, confrelid=0, conislocal=True, conkey=key, conbin=f"PRIMARY KEY ({names})")  # fmt: skip
        oid += 3


def _type_text(field: Field) -> str:
    return engine_type(field).replace(", ", ",")


def _modifier(field: Field) -> int:
    match field.kind:
        case Digits(precision, scale):
            return ((precision << 16) | scale) + 4
    return -1


SERVER_VERSION = "15.0"
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
_VERSION = f"PostgreSQL {SERVER_VERSION} (Headrace, read-only)"
TABLES = {
    "pg_namespace": "oid BIGINT, nspname VARCHAR, nspowner BIGINT, nspacl VARCHAR",
    "pg_class": "oid BIGINT, relname VARCHAR, relnamespace BIGINT, reltype BIGINT, reloftype BIGINT, relowner BIGINT,"
    " relam BIGINT, relfilenode BIGINT, reltablespace BIGINT, relpages INTEGER, reltuples FLOAT, reltoastrelid BIGINT,"
    " relhasindex BOOLEAN, relisshared BOOLEAN, relpersistence VARCHAR, relkind VARCHAR, relnatts SMALLINT,"
    " relchecks SMALLINT, relhasrules BOOLEAN, relhastriggers BOOLEAN, relhassubclass BOOLEAN, relrowsecurity BOOLEAN,"
    " relforcerowsecurity BOOLEAN, relispopulated BOOLEAN, relreplident VARCHAR, relispartition BOOLEAN,"
    " relacl VARCHAR, reloptions VARCHAR[], relpartbound VARCHAR",
    "pg_attribute": "attrelid BIGINT, attname VARCHAR, atttypid BIGINT, attlen SMALLINT, attnum SMALLINT,"
    " attndims INTEGER, atttypmod INTEGER, attnotnull BOOLEAN, atthasdef BOOLEAN, atthasmissing BOOLEAN,"
    " attidentity VARCHAR, attgenerated VARCHAR, attisdropped BOOLEAN, attislocal BOOLEAN, attcollation BIGINT,"
    " attstorage VARCHAR, attcompression VARCHAR, attstattarget INTEGER, attoptions VARCHAR[], attacl VARCHAR",
    "pg_type": "oid BIGINT, typname VARCHAR, typnamespace BIGINT, typowner BIGINT, typlen SMALLINT, typbyval BOOLEAN,"
    " typtype VARCHAR, typcategory VARCHAR, typdelim VARCHAR, typrelid BIGINT, typelem BIGINT, typarray BIGINT,"
    " typinput VARCHAR, typbasetype BIGINT, typtypmod INTEGER, typnotnull BOOLEAN, typcollation BIGINT,"
    " typdefault VARCHAR",
    "pg_index": "indexrelid BIGINT, indrelid BIGINT, indnatts SMALLINT, indnkeyatts SMALLINT, indisunique BOOLEAN,"
    " indnullsnotdistinct BOOLEAN, indisprimary BOOLEAN, indisclustered BOOLEAN, indisvalid BOOLEAN,"
    " indisreplident BOOLEAN, indkey SMALLINT[], indoption SMALLINT[], indclass BIGINT[], indcollation BIGINT[],"
    " indexprs VARCHAR, indpred VARCHAR",
    "pg_constraint": "oid BIGINT, conname VARCHAR, connamespace BIGINT, contype VARCHAR, condeferrable BOOLEAN,"
    " condeferred BOOLEAN, convalidated BOOLEAN, conrelid BIGINT, contypid BIGINT, conindid BIGINT, conparentid BIGINT,"
    " confrelid BIGINT, confupdtype VARCHAR, confdeltype VARCHAR, confmatchtype VARCHAR, conislocal BOOLEAN,"
    " conkey SMALLINT[], confkey SMALLINT[], conbin VARCHAR",
    "pg_database": "oid BIGINT, datname VARCHAR, datdba BIGINT, encoding INTEGER, datcollate VARCHAR, datctype VARCHAR,"
    " datistemplate BOOLEAN, datallowconn BOOLEAN, datacl VARCHAR, daticulocale VARCHAR, datlocprovider VARCHAR",
    "pg_roles": "oid BIGINT, rolname VARCHAR, rolsuper BOOLEAN, rolinherit BOOLEAN, rolcreaterole BOOLEAN,"
    " rolcreatedb BOOLEAN, rolcanlogin BOOLEAN, rolconnlimit INTEGER, rolvaliduntil VARCHAR, rolreplication BOOLEAN,"
    " rolbypassrls BOOLEAN",
    "pg_auth_members": "oid BIGINT, roleid BIGINT, member BIGINT, grantor BIGINT, admin_option BOOLEAN",
    "pg_user": "usename VARCHAR, usesysid BIGINT, usesuper BOOLEAN",
    "pg_am": "oid BIGINT, amname VARCHAR",
    "pg_attrdef": "oid BIGINT, adrelid BIGINT, adnum SMALLINT, adbin VARCHAR",
    "pg_collation": "oid BIGINT, collname VARCHAR, collnamespace BIGINT",
    "pg_description": "objoid BIGINT, classoid BIGINT, objsubid INTEGER, description VARCHAR",
    "pg_inherits": "inhrelid BIGINT, inhparent BIGINT, inhseqno INTEGER, inhdetachpending BOOLEAN",
    "pg_policy": "oid BIGINT, polname VARCHAR, polrelid BIGINT, polcmd VARCHAR, polpermissive BOOLEAN,"
    " polroles BIGINT[], polqual VARCHAR, polwithcheck VARCHAR",
    "pg_publication": "oid BIGINT, pubname VARCHAR, puballtables BOOLEAN",
    "pg_publication_rel": "prpubid BIGINT, prrelid BIGINT, prqual VARCHAR, prattrs SMALLINT[]",
    "pg_publication_namespace": "pnpubid BIGINT, pnnspid BIGINT",
    "pg_statistic_ext": "oid BIGINT, stxrelid BIGINT, stxname VARCHAR, stxnamespace BIGINT, stxkind VARCHAR[],"
    " stxstattarget INTEGER",
    "pg_trigger": "oid BIGINT, tgrelid BIGINT, tgname VARCHAR, tgisinternal BOOLEAN, tgenabled VARCHAR,"
    " tgparentid BIGINT",
    "pg_rewrite": "oid BIGINT, rulename VARCHAR, ev_class BIGINT, ev_enabled VARCHAR, ev_type VARCHAR",
    "pg_foreign_table": "ftrelid BIGINT, ftserver BIGINT",
    "pg_foreign_server": "oid BIGINT, srvname VARCHAR",
    "pg_tablespace": "oid BIGINT, spcname VARCHAR",
    "pg_proc": "oid BIGINT, proname VARCHAR, pronamespace BIGINT, prokind VARCHAR, proargtypes BIGINT[],"
    " prorettype BIGINT",
    "pg_enum": "oid BIGINT, enumtypid BIGINT, enumsortorder FLOAT, enumlabel VARCHAR",
    "pg_range": "rngtypid BIGINT, rngsubtype BIGINT",
    "pg_depend": "classid BIGINT, objid BIGINT, objsubid INTEGER, refclassid BIGINT, refobjid BIGINT,"
    " refobjsubid INTEGER, deptype VARCHAR",
    "pg_sequence": "seqrelid BIGINT, seqtypid BIGINT, seqstart BIGINT, seqincrement BIGINT, seqmax BIGINT,"
    " seqmin BIGINT, seqcache BIGINT, seqcycle BOOLEAN",
    "pg_extension": "oid BIGINT, extname VARCHAR, extversion VARCHAR, extnamespace BIGINT",
    "pg_opclass": "oid BIGINT, opcmethod BIGINT, opcname VARCHAR, opcnamespace BIGINT, opcowner BIGINT,"
    " opcfamily BIGINT, opcintype BIGINT, opcdefault BOOLEAN, opckeytype BIGINT",
    "pg_settings": "name VARCHAR, setting VARCHAR",
}
CATALOG_VIEWS = {
    "pgc.pg_tables": "SELECT 'public' AS schemaname, relname AS tablename, 'headrace' AS tableowner,"
    " NULL::VARCHAR AS tablespace, true AS hasindexes, false AS hasrules, false AS hastriggers FROM pgc.pg_class"
    " WHERE relkind = 'r'",
    "pgc.pg_views": "SELECT NULL::VARCHAR AS schemaname, NULL::VARCHAR AS viewname, NULL::VARCHAR AS viewowner,"
    " NULL::VARCHAR AS definition WHERE false",
    "pgc.pg_matviews": "SELECT NULL::VARCHAR AS schemaname, NULL::VARCHAR AS matviewname WHERE false",
    "infos.schemata": "SELECT current_setting_of('database') AS catalog_name, nspname AS schema_name,"
    " 'headrace' AS schema_owner FROM pgc.pg_namespace",
    "infos.tables": "SELECT current_setting_of('database') AS table_catalog, 'public' AS table_schema,"
    " relname AS table_name, 'BASE TABLE' AS table_type, 'NO' AS is_insertable_into FROM pgc.pg_class"
    " WHERE relkind = 'r'",
    "infos.views": "SELECT NULL::VARCHAR AS table_catalog, NULL::VARCHAR AS table_schema, NULL::VARCHAR AS table_name,"
    " NULL::VARCHAR AS view_definition WHERE false",
    "infos.columns": "SELECT current_setting_of('database') AS table_catalog, 'public' AS table_schema,"
    " c.relname AS table_name, a.attname AS column_name, a.attnum::INTEGER AS ordinal_position,"
    " NULL::VARCHAR AS column_default, CASE WHEN a.attnotnull THEN 'NO' ELSE 'YES' END AS is_nullable,"
    " hr_type(a.atttypid) AS data_type, NULL::INTEGER AS character_maximum_length,"
    " CASE WHEN a.atttypmod > 0 THEN (a.atttypmod - 4) // 65536 END AS numeric_precision,"
    " CASE WHEN a.atttypmod > 0 THEN (a.atttypmod - 4) % 65536 END AS numeric_scale, t.typname AS udt_name,"
    " 'pg_catalog' AS udt_schema, 'NO' AS is_identity, 'NEVER' AS is_generated, NULL::INTEGER AS datetime_precision"
    " FROM pgc.pg_attribute a JOIN pgc.pg_class c ON c.oid = a.attrelid JOIN pgc.pg_type t ON t.oid = a.atttypid"
    " WHERE c.relkind = 'r'",
    "infos.table_constraints": "SELECT 'public' AS constraint_schema, con.conname AS constraint_name,"
    " 'public' AS table_schema, c.relname AS table_name, 'PRIMARY KEY' AS constraint_type FROM pgc.pg_constraint con"
    " JOIN pgc.pg_class c ON c.oid = con.conrelid",
    "infos.key_column_usage": "SELECT 'public' AS constraint_schema, con.conname AS constraint_name,"
    " 'public' AS table_schema, c.relname AS table_name, a.attname AS column_name,"
    " list_position(con.conkey, a.attnum)::INTEGER AS ordinal_position FROM pgc.pg_constraint con JOIN pgc.pg_class c"
    " ON c.oid = con.conrelid JOIN pgc.pg_attribute a ON a.attrelid = c.oid AND list_contains(con.conkey, a.attnum)",
}
MACROS = {
    "current_database": "() AS current_setting_of('database')",
    "current_catalog": "() AS current_setting_of('database')",
    "current_user": "() AS current_setting_of('user')",
    "current_role": "() AS current_setting_of('user')",
    "session_user": "() AS current_setting_of('user')",
    "user": "() AS current_setting_of('user')",
    "current_schema": "() AS 'public'",
    "current_schemas": "(a) AS ['public']",
    "version": f"() AS '{_VERSION}'",
    "pg_backend_pid": "() AS 0",
    "pg_is_in_recovery": "() AS false",
    "pg_get_userbyid": "(a) AS 'headrace'",
    "pg_table_is_visible": "(a) AS true",
    "pg_type_is_visible": "(a) AS true",
    "pg_function_is_visible": "(a) AS true",
    "pg_collation_is_visible": "(a) AS true",
    "pg_opclass_is_visible": "(a) AS true",
    "pg_is_other_temp_schema": "(a) AS false",
    "pg_my_temp_schema": "() AS 0",
    "pg_size_pretty": "(a) AS a::VARCHAR || ' bytes'",
    "pg_get_triggerdef": "(a) AS NULL::VARCHAR, (a, b) AS NULL::VARCHAR",
    "pg_get_ruledef": "(a) AS NULL::VARCHAR, (a, b) AS NULL::VARCHAR",
    "pg_relation_is_publishable": "(a) AS false",
    "pg_encoding_to_char": "(a) AS 'UTF8'",
    "pg_get_expr": "(a, b) AS NULL::VARCHAR, (a, b, c) AS NULL::VARCHAR",
    "pg_get_viewdef": "(a) AS NULL::VARCHAR, (a, b) AS NULL::VARCHAR",
    "pg_get_statisticsobjdef_columns": "(a) AS NULL::VARCHAR",
    "pg_get_partkeydef": "(a) AS NULL::VARCHAR",
    "pg_get_serial_sequence": "(a, b) AS NULL::VARCHAR",
    "pg_get_constraintdef": "(a) AS hr_constraint(a), (a, b) AS hr_constraint(a)",
    "pg_get_indexdef": "(a) AS hr_index(a),"
    " (a, b, c) AS CASE WHEN b > 0 THEN hr_index_column(a, b) ELSE hr_index(a) END",
    "obj_description": "(a) AS NULL::VARCHAR, (a, b) AS NULL::VARCHAR",
    "col_description": "(a, b) AS NULL::VARCHAR",
    "shobj_description": "(a, b) AS NULL::VARCHAR",
    "has_table_privilege": "(a, b) AS true, (a, b, c) AS true",
    "has_schema_privilege": "(a, b) AS true, (a, b, c) AS true",
    "has_database_privilege": "(a, b) AS true, (a, b, c) AS true",
    "has_column_privilege": "(a, b, c) AS true",
    "array_lower": "(a, b) AS 1",
    "array_upper": "(a, b) AS len(a)",
    "_pg_expandarray": "(a) AS unnest(list_transform(a, lambda v, n: {'x': v, 'n': n}))",
    "pg_total_relation_size": "(a) AS 0",
    "pg_relation_size": "(a) AS 0",
    "pg_table_size": "(a) AS 0",
    "pg_indexes_size": "(a) AS 0",
    "pg_get_function_result": "(a) AS NULL::VARCHAR",
    "pg_get_function_arguments": "(a) AS NULL::VARCHAR",
    "format_type": "(a, b) AS hr_format(a, b)",
    "quote_ident": "(a) AS '\"' || replace(a, '\"', '\"\"') || '\"'",
    "to_regclass": "(a) AS (SELECT min(oid) FROM pgc.pg_class WHERE relname = hr_bare(a))",
    "to_regtype": "(a) AS (SELECT min(oid) FROM pgc.types WHERE lower(a) IN (name, shown))",
    "to_regnamespace": "(a) AS (SELECT min(oid) FROM pgc.pg_namespace WHERE nspname = hr_bare(a))",
    "set_config": "(a, b, c) AS b",
    "current_setting": "(a) AS (SELECT max(setting) FROM pgc.pg_settings WHERE name = lower(a)),"
    " (a, b) AS (SELECT max(setting) FROM pgc.pg_settings WHERE name = lower(a))",
}
HELPER_MACROS = (
    "MACRO current_setting_of(a) AS (SELECT max(setting) FROM pgc.pg_settings WHERE name = a)",
    "MACRO hr_type(a) AS (SELECT max(shown) FROM pgc.types WHERE oid = a)",
    "MACRO hr_format(a, b) AS hr_type(a) || CASE WHEN a = 1700 AND b > 0"
    " THEN '(' || ((b - 4) // 65536) || ',' || ((b - 4) % 65536) || ')' ELSE '' END",
    "MACRO hr_bare(a) AS replace(regexp_replace(a, '^\"?public\"?\\.', ''), '\"', '')",
    "MACRO hr_constraint(a) AS (SELECT max(conbin) FROM pgc.pg_constraint WHERE oid = a)",
    "MACRO hr_index(a) AS (SELECT 'CREATE UNIQUE INDEX USING btree ' || substr(max(conbin), 13) FROM pgc.pg_constraint"
    " WHERE conindid = a)",
    "MACRO hr_index_column(a, b) AS (SELECT max(attname) FROM pgc.pg_index JOIN pgc.pg_attribute ON attrelid = indrelid"
    " AND attnum = indkey[b] WHERE indexrelid = a)",
)
REG_TYPES = {
    "regclass": (
        "(SELECT max(relname) FROM pgc.pg_class WHERE oid = try_cast(a AS BIGINT))",
        "(SELECT min(oid) FROM pgc.pg_class WHERE relname = hr_bare(a) OR oid = try_cast(a AS BIGINT))",
    ),
    "regtype": (
        "hr_type(try_cast(a AS BIGINT))",
        "(SELECT min(oid) FROM pgc.types WHERE lower(a) IN (name, shown) OR oid = try_cast(a AS BIGINT))",
    ),
    "regnamespace": (
        "(SELECT max(nspname) FROM pgc.pg_namespace WHERE oid = try_cast(a AS BIGINT))",
        "(SELECT min(oid) FROM pgc.pg_namespace WHERE nspname = hr_bare(a) OR oid = try_cast(a AS BIGINT))",
    ),
    "regproc": ("a::VARCHAR", "regexp_replace(a::VARCHAR, '^pg_catalog\\.', '')"),
    "regrole": ("'headrace'", "10"),
}
