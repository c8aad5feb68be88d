"""What the system's tables and functions are, as data: columns, what some are made of, and macros for the engine."""

from __future__ import annotations

__all__ = ["LOOKUPS", "MACROS", "MADE", "REGISTERS", "SERVER_VERSION", "TABLES"]

SERVER_VERSION = "15.0"
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
MADE = {
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
LOOKUPS = (
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
REGISTERS = {
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
