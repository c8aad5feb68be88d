"""The archive address in ``--set``. An invalid address is refused with a hint, before any file is created."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headrace.broker.main import run_broker
from headrace.broker.storage.archive_access import parse_archive
from headrace.errors import ConfigError, HeadraceError
from headrace.log.archive_store import BucketAddress
from headrace.model.errors import MissingExtra


def test_the_archives_settings_are_removed_from_the_topic_defaults() -> None:
    configs = {"headrace.archive.dir": "old/data", "retention.ms": "1000"}
    assert parse_archive(configs) == Path("old/data")
    assert configs == {"retention.ms": "1000"}
    configs = {
        "headrace.archive.dir": "s3://archive/prefix",
        "headrace.archive.s3.endpoint": "http://127.0.0.1:9000",
        "headrace.archive.s3.region": "eu-west-1",
    }
    assert parse_archive(configs) == BucketAddress("archive", "prefix", "http", "127.0.0.1:9000", "eu-west-1")
    assert configs == {}
    assert parse_archive({}) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"headrace.archive.dir": "gs://archive"}, "unsupported scheme gs"),
        ({"headrace.archive.dir": "https://archive.s3.amazonaws.com"}, "unsupported scheme https"),
        ({"headrace.archive.dir": "s3://a"}, "invalid bucket"),
        ({"headrace.archive.s3.endpoint": "http://127.0.0.1:9000"}, "the archive is not in a bucket"),
        (
            {"headrace.archive.dir": "folder", "headrace.archive.s3.region": "eu-west-1"},
            "the archive is not in a bucket",
        ),
    ],
)
def test_a_start_with_an_invalid_archive_address_fails_and_creates_nothing(
    tmp_path: Path, settings: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        run_broker(listen="127.0.0.1:0", data=tmp_path / "data", settings=settings)
    assert raised.value.hint
    assert list(tmp_path.iterdir()) == []


def test_the_error_for_a_missing_extra_contains_the_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "headrace.log.archive_bucket", raising=False)
    with pytest.raises(HeadraceError) as raised:
        run_broker(
            listen="127.0.0.1:0", data=tmp_path / "data", settings={"headrace.archive.dir": "s3://archive"}
        )
    assert isinstance(raised.value, MissingExtra)
    assert raised.value.hint == "pip install 'headrace[s3]'"
    assert list(tmp_path.iterdir()) == []


def test_a_broker_without_a_bucket_loads_no_pyarrow() -> None:
    import subprocess

    program = "import sys, headrace.broker.main; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
