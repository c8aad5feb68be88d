from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.broker.storage.data_dir import DataDir
from headrace.errors import DamagedState, DataDirError, DataDirInUse, FormatTooNew
from headrace.files import SystemFiles


def open_data_dir(path: Path) -> DataDir:
    return DataDir(SystemFiles(), path)


def test_a_new_directory_keeps_its_identity(tmp_path: Path) -> None:
    first = open_data_dir(tmp_path / "data")
    first.close()
    second = open_data_dir(tmp_path / "data")
    assert second.identity.cluster_id == first.identity.cluster_id
    assert len(second.identity.cluster_id) == 22
    second.close()


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    first = open_data_dir(tmp_path / "data")
    with pytest.raises(DataDirInUse) as raised:
        open_data_dir(tmp_path / "data")
    assert "--data" in str(raised.value)
    first.close()
    open_data_dir(tmp_path / "data").close()


def test_starts_are_counted_and_no_producer_id_is_used_twice(tmp_path: Path) -> None:
    producer_ids: list[int] = []
    for start in range(3):
        data_dir = open_data_dir(tmp_path / "data")
        assert data_dir.record_start() == start
        producer_ids += [data_dir.next_producer_id() for _ in range(1500)]
        data_dir.close()
    assert len(set(producer_ids)) == len(producer_ids)


def test_a_newer_format_is_refused_and_not_touched(tmp_path: Path) -> None:
    open_data_dir(tmp_path / "data").close()
    path = tmp_path / "data" / "headrace.json"
    body = json.loads(path.read_text())
    body["format"] = 2
    path.write_text(json.dumps(body))
    before = path.read_bytes()
    with pytest.raises(FormatTooNew) as raised:
        open_data_dir(tmp_path / "data")
    assert "format 2" in str(raised.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", ["flip", "empty", "junk", "digit", "deep"])
def test_a_damaged_identity_is_refused(tmp_path: Path, damage: str) -> None:
    open_data_dir(tmp_path / "data").close()
    path = tmp_path / "data" / "headrace.json"
    raw = path.read_bytes()
    path.write_bytes(
        {
            "flip": raw.replace(b'"starts": 0', b'"starts": 7'),
            "empty": b"",
            "junk": b"\xff\x00",
            "digit": raw.replace(b'"cluster_id": "', b'"cluster_id": "x'),
            "deep": b"[" * 100_000,
        }[damage]
    )
    with pytest.raises(DamagedState):
        open_data_dir(tmp_path / "data")


def test_a_directory_with_unknown_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "holiday.jpg").write_bytes(b"x")
    with pytest.raises(DamagedState) as raised:
        open_data_dir(tmp_path / "data")
    assert "holiday.jpg" in str(raised.value)


def test_a_path_that_cannot_be_a_directory_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataDirError) as raised:
        open_data_dir(tmp_path / "file")
    assert "--data" in str(raised.value)
