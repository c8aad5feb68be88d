"""Public means listed in ``__all__``. What the package's parts offer is pinned here, so that it changes on purpose."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

from .tracked import ROOT, short

SOURCE = ROOT / "src"
MODULES = sorted(path for path in (SOURCE / "headrace").rglob("*.py") if path.name != "__main__.py")

# Pinned beside its own tests.
ELSEWHERE = {"headrace.records"}
PINNED: dict[str, set[str]] = {
    "headrace.app": {"App"},
    "headrace.broker": set(),
    "headrace.checksum": {"crc32c"},
    "headrace.private": {"DIR_MODE", "FILE_MODE", "create_private", "make_private_dir", "private"},
    "headrace.readable": {"readable"},
    "headrace.cli": {"main"},
    "headrace.client": set(),
    "headrace.clock": {"Clock", "SystemClock"},
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
    "headrace.files": {"File", "Files", "Lock", "LockHeld", "SystemFiles"},
    "headrace.key_order": {"FORCE_CONFIG", "share_that_moves", "what_moves"},
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
            "Place",
            "Position",
            "Record",
            "Table",
            "Written",
            "WrittenMany",
            "literal",
        ),
        *(
            "AnswerUnfit",
            "Busy",
            "Closed",
            "Gone",
            "Late",
            "Moved",
            "NotAllowed",
            "NotLoggedIn",
            "NotThere",
            "Outdated",
        ),
        *("OutcomeUnknown", "RemoteError", "ServerFault", "Unfit", "Unreachable"),
    },
    "headrace.runtime": set(),
    "headrace.serve": set(),
    "headrace.settings": {
        "AlertSettings",
        "BrokerSettings",
        "FlowSettings",
        "LogSettings",
        "MetricsSettings",
        "ServeSettings",
        "Settings",
        "SparkSettings",
        "TopicSettings",
        "VerifySettings",
        "ViewSettings",
    },
    "headrace.stores": {"Delta", "OnRead", "Postgres", "Redis", "SQLite", "Search"},
    "headrace.testing": set(),
    "headrace.views": set(),
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


def test_every_part_of_the_package_is_pinned() -> None:
    parts = {module_name(path) for path in MODULES if module_name(path).count(".") == 1}
    assert parts == set(PINNED) | ELSEWHERE


@pytest.mark.parametrize("name", PINNED)
def test_a_part_offers_what_is_pinned_and_nothing_else(name: str) -> None:
    module = importlib.import_module(name)
    offered = getattr(module, "__all__", [])
    assert set(offered) == PINNED[name], (
        "a change here is a change for users: pin it, and tell them in CHANGELOG.md"
    )


def test_every_module_with_code_lists_what_it_offers() -> None:
    silent = []
    for path in MODULES:
        body = ast.parse(path.read_text(encoding="utf-8")).body
        lists = any(
            isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__" for node in body
        )
        only_words = all(isinstance(node, ast.Expr) for node in body)
        if not lists and not only_words:
            silent.append(short(path))
    assert silent == []
