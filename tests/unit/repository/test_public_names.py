"""Public means listed in ``__all__``. These tests pin the public names, so that they never change by accident."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

from .tracked import ROOT, short

SOURCE = ROOT / "src"
MODULES = sorted(path for path in (SOURCE / "headrace").rglob("*.py") if path.name != "__main__.py")

# The tests of these modules pin their names.
PINNED_ELSEWHERE = {"headrace.records"}
PINNED: dict[str, set[str]] = {
    "headrace.app": {"App"},
    "headrace.app_argument": {"app_argument", "set_app_argument"},
    "headrace.broker": set(),
    "headrace.checksum": {"Buffer", "crc32c"},
    "headrace.cli": {"main"},
    "headrace.client": set(),
    "headrace.clock": {"Clock", "GRACE_S", "SystemClock", "TOLERANCE_MS", "TrustedTime", "time_json"},
    "headrace.errors": {
        *(
            "ArchiveUnavailable",
            "ConfigError",
            "CorruptBatch",
            "DamagedState",
            "DataDirError",
            "DataDirInUse",
        ),
        *("FormatTooNew", "HeadraceError", "OffsetOutOfRange", "PartitionFenced", "StorageError"),
    },
    "headrace.flow": set(),
    "headrace.files": {
        "DIR_MODE",
        "FILE_MODE",
        "File",
        "Files",
        "Lock",
        "LockHeld",
        "SystemFiles",
        "create_private",
        "make_private_dir",
        "private",
        "readable",
    },
    "headrace.key_order": {"FORCE_CONFIG", "moved_share", "describe_moved_keys"},
    "headrace.log": set(),
    "headrace.memory_files": {"MemoryFile", "MemoryFiles"},
    "headrace.model": set(),
    "headrace.ops": set(),
    "headrace.remote": {
        *("AsyncChanges", "AsyncRemote", "AsyncRows", "AsyncSql", "AsyncTopic", "AsyncView"),
        *("Changes", "Remote", "Rows", "Sql", "SqlRows", "Topic", "View"),
        *(
            "Change",
            "Described",
            "LiveRows",
            "Page",
            "RecordId",
            "Position",
            "Record",
            "Table",
            "Written",
            "WrittenMany",
            "literal",
        ),
        *(
            "InvalidResponse",
            "Busy",
            "Closed",
            "RecordsDeleted",
            "Late",
            "Moved",
            "NotAllowed",
            "NotLoggedIn",
            "NotFound",
            "Outdated",
        ),
        *("OutcomeUnknown", "RemoteError", "ServerFault", "InvalidRequest", "Unreachable"),
    },
    "headrace.runtime": set(),
    "headrace.serve": set(),
    "headrace.settings": {
        "DEFAULT_SERVE_LISTEN",
        "FREE_SERVE_LISTEN",
        "SERVE_OFF",
        "AlertSettings",
        "BrokerSettings",
        "FlowSettings",
        "LogSettings",
        "MetricsSettings",
        "ServeSettings",
        "Settings",
        "SparkSettings",
        "SwitchSettings",
        "TopicSettings",
        "VerifySettings",
        "ViewSettings",
    },
    "headrace.stores": {"Delta", "OnRead", "Postgres", "Redis", "SQLite", "Search"},
    "headrace.processes": {"is_running"},
    "headrace.service_manager": {"ServiceManager"},
    "headrace.testing": {
        *("BrokerThread", "DrivenClock", "FlowTester", "RunningApp"),
        *("DeadRecord", "Deleted", "DerivedRows", "InvalidSample", "LateRecord", "Reason"),
        *("eventually", "local_settings", "local_spark", "running"),
    },
    "headrace.follow": set(),
    "headrace.truth": {"VOLATILE_CONFIG", "NotASourceOfTruth", "expect_source_of_truth", "is_volatile"},
    "headrace.wire": {
        *("Api", "ErrorCode", "Header", "WireError", "advertised", "versions"),
        *("decode", "decode_header", "decode_request", "decode_response"),
        *("encode", "encode_request", "encode_response", "encode_response_parts"),
    },
}


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_the_public_names_of_every_part_are_pinned() -> None:
    parts = {module_name(path) for path in MODULES if module_name(path).count(".") == 1}
    assert parts == set(PINNED) | PINNED_ELSEWHERE


@pytest.mark.parametrize("name", PINNED)
def test_a_module_offers_exactly_the_pinned_names(name: str) -> None:
    module = importlib.import_module(name)
    offered = getattr(module, "__all__", [])
    assert set(offered) == PINNED[name], (
        "a change here is a change for users: pin it, and list it in CHANGELOG.md"
    )


def test_every_module_with_code_has_a_list_of_public_names() -> None:
    modules_without_list = []
    for path in MODULES:
        body = ast.parse(path.read_text(encoding="utf-8")).body
        has_list = any(
            isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__" for node in body
        )
        has_only_docstrings = all(isinstance(node, ast.Expr) for node in body)
        if not has_list and not has_only_docstrings:
            modules_without_list.append(short(path))
    assert modules_without_list == []
