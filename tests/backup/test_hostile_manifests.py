"""Forged manifests: a name in it must not lead to another path, and with a key the MAC must be valid."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.broker.backup.errors import BackupDamaged, BackupUnauthentic
from headrace.broker.backup.folder import BackupFolder
from headrace.broker.backup.manifest import Authenticity, read_key
from headrace.broker.backup.pieces import DamagedPiece
from headrace.broker.backup.restore import Restore
from headrace.broker.backup.restore_points import choose
from headrace.checksum import crc32c
from headrace.clock import SystemClock
from headrace.errors import ConfigError
from headrace.settings import BrokerSettings
from headrace.settings.loader import load
from tests.backup.test_failures import done, world_with_records
from tests.backup.workload import UnsyncedFiles, World
from tests.cli.runner import Headrace

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
Change = Callable[[dict[str, Any]], None]


def _newest(folder: Path) -> Path:
    return max((folder / "manifests").iterdir())


def _forge(folder: Path, change: Change) -> None:
    """Change the newest manifest, and correct its checksum."""
    path = _newest(folder)
    body = msgspec.json.decode(path.read_bytes().splitlines()[0])
    change(body)
    raw = msgspec.json.encode(body)
    path.write_bytes(raw + b"\n%08x\n" % crc32c(raw))


def _tree(home: Path) -> set[str]:
    return {str(path.relative_to(home)) for path in home.rglob("*")}


def _moved(body: dict[str, Any], log_id: str) -> None:
    """Move a partition to another log id."""
    old_id = next(part for part in body["parts"] if "/" in part)
    body["parts"][log_id] = body["parts"].pop(old_id)


def _renamed(body: dict[str, Any], file: str) -> None:
    part = next(part for log_id, part in body["parts"].items() if "/" in log_id and part["segments"])
    part["segments"][0][1][0][0] = file


@pytest.fixture(scope="module")
def backup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a backup without a key."""

    async def written() -> Path:
        world = await world_with_records(tmp_path_factory.mktemp("hostile"), 30)
        await world.stop()
        return world.folder

    return asyncio.run(written())


@pytest.fixture
def folder(backup: Path, tmp_path: Path) -> Path:
    """A copy of the backup whose newest restore point is a full manifest."""
    backup_folder = BackupFolder(backup)
    newest = choose(backup_folder)
    full = msgspec.structs.replace(newest, base=None)
    copied = tmp_path / "world" / "backup"
    shutil.copytree(backup / "pieces", copied / "pieces")
    shutil.copy(backup / "backup.json", copied)
    BackupFolder(copied).add(full)
    return copied


@pytest.mark.parametrize(
    "change",
    [
        lambda body: _moved(body, "../../escaped/0"),
        lambda body: _moved(body, "../../../escaped"),
        lambda body: _moved(body, "/tmp/headrace-escaped/0"),
        lambda body: _moved(body, f"{'a' * 32}/../../../escaped"),
        lambda body: _moved(body, f"{'a' * 32}/0\n"),
        lambda body: _moved(body, f"{'a' * 32}/-1"),
        lambda body: _moved(body, "topics"),
        lambda body: _renamed(body, "../../../../canary"),
        lambda body: _renamed(body, "/etc/passwd"),
        lambda body: _renamed(body, f"{'0' * 20}-{'0' * 12}-{'0' * 10}-{'0' * 8}.piece/../x"),
        lambda body: next(iter(body["parts"].values())).update(state=["../x.state", 0, 0, 0]),
        lambda body: body.update(gone=["../.."]),
        lambda body: body.update(stale=["../.."]),
        # Without a complete journal the backup has no restore point.
        lambda body: body.update(stale=["metadata"]),
        lambda body: body["topics"].update({"../..": "t"}),
        lambda body: body["topics"].update({"a" * 32: "../../t"}),
        lambda body: body["topics"].update({"a" * 32: "."}),
        lambda body: body["topics"].update({"a" * 32: ".."}),
        lambda body: body.update(restored=[{"at_ms": 0, "manifest": "../x", "ends": {}}]),
        lambda body: body.update(line="../line"),
        lambda body: next(iter(body["parts"].values()))["segments"].append([-1, []]),
        lambda body: next(iter(body["parts"].values()))["segments"].append([2**80, []]),
    ],
)
async def test_a_manifest_with_an_invalid_name_is_refused_before_the_first_write(
    folder: Path, tmp_path: Path, change: Change
) -> None:
    (tmp_path / "canary").write_text("the canary")
    _forge(folder, change)
    before = _tree(tmp_path)
    with pytest.raises(BackupDamaged, match="is damaged"):
        Restore(
            BackupFolder(folder),
            tmp_path / "world" / "restored",
            choose(BackupFolder(folder)),
            {},
            clock=SystemClock(),
        ).run()
    assert _tree(tmp_path) == before
    assert not Path("/tmp/headrace-escaped").exists()


async def test_a_manifest_with_the_file_name_of_another_is_refused(folder: Path) -> None:
    _forge(folder, lambda body: body.update(sequence=body["sequence"] + 1))
    with pytest.raises(BackupDamaged, match="it has the content of"):
        choose(BackupFolder(folder))


@pytest.mark.parametrize("kind", ["link", "pipe"])
async def test_a_piece_that_is_not_a_regular_file_is_damaged(folder: Path, tmp_path: Path, kind: str) -> None:
    piece = next((folder / "pieces").rglob("*.piece"))
    moved = tmp_path / "moved"
    piece.rename(moved)
    if kind == "link":
        piece.symlink_to(moved)
    else:
        os.mkfifo(piece)
    backup_folder = BackupFolder(folder)
    with pytest.raises(DamagedPiece, match="cannot be read"):
        await done(Restore(backup_folder, tmp_path / "r", choose(backup_folder), {}, clock=SystemClock()))


def _restoring(folder: BackupFolder, data: Path) -> Restore:
    return Restore(folder, data, choose(folder), {}, clock=SystemClock(), files=UnsyncedFiles())


async def test_a_backup_with_a_key_can_only_be_restored_with_that_key(tmp_path: Path) -> None:
    world = await world_with_records(tmp_path, 20, backup_key=KEY)
    await world.step()
    await world.stop()
    await done(_restoring(BackupFolder(world.folder, key=KEY), tmp_path / "right"))
    for key, expected in ((OTHER_KEY, Authenticity.WRONG), (None, Authenticity.UNCHECKED)):
        folder = BackupFolder(world.folder, key=key)
        assert folder.authenticity(folder.names()[-1]) is expected
        if key is not None:
            with pytest.raises(BackupUnauthentic, match="MAC is wrong"):
                choose(folder)
    backup_folder = BackupFolder(world.folder, key=OTHER_KEY, accepts_unauthentic=True)
    await done(_restoring(backup_folder, tmp_path / "anyway"))
    await done(_restoring(BackupFolder(world.folder), tmp_path / "unchecked"))


async def test_with_a_key_manifests_with_a_wrong_mac_or_without_a_mac_are_refused(tmp_path: Path) -> None:
    world = await world_with_records(tmp_path, 20, backup_key=KEY)
    await world.stop()
    folder = BackupFolder(world.folder, key=KEY)
    newest = _newest(world.folder)
    raw = newest.read_bytes()
    _forge(world.folder, lambda body: body.update(next_producer_id=7))
    with pytest.raises(BackupUnauthentic, match="it has no MAC"):
        choose(folder)
    mac = raw.split()[-1]
    newest.write_bytes(newest.read_bytes()[:-1] + b" " + mac + b"\n")
    with pytest.raises(BackupUnauthentic, match="MAC is wrong"):
        choose(folder)
    newest.write_bytes(raw)
    assert choose(folder).name.file == newest.name


async def test_the_sha256_detects_a_changed_piece_with_the_same_crc(tmp_path: Path) -> None:
    world = await world_with_records(tmp_path, 20, backup_key=KEY)
    await world.stop()
    folder = BackupFolder(world.folder, key=KEY)
    newest = choose(folder)
    log_id, part = next(
        (log_id, part) for log_id, part in newest.parts.items() if "/" in log_id and part.size
    )
    piece = part.segments[0].pieces[0]
    path = folder.piece(log_id, piece.file)
    path.write_bytes(_same_crc(path.read_bytes()))
    with pytest.raises(DamagedPiece, match="SHA-256"):
        await done(_restoring(folder, tmp_path / "r"))


def _same_crc(raw: bytes) -> bytes:
    """Other bytes with the same length and CRC-32C; the last four bytes are computed."""
    wanted, changed = crc32c(raw), bytearray(raw)
    changed[0] ^= 0xFF

    # The checksum is linear in the last four bytes: solve for the bits of the difference.
    def with_tail(tail: int) -> int:
        return crc32c(bytes(changed[:-4]) + tail.to_bytes(4, "little"))

    zero = with_tail(0)
    rows = [(1 << bit, with_tail(1 << bit) ^ zero) for bit in range(32)]
    target, tail = wanted ^ zero, 0
    for bit in range(32):
        pivot = next((row for row in rows if row[1] >> bit & 1), None)
        if pivot is None:
            continue
        rows.remove(pivot)
        rows = [(a ^ pivot[0], b ^ pivot[1]) if b >> bit & 1 else (a, b) for a, b in rows]
        if target >> bit & 1:
            target, tail = target ^ pivot[1], tail ^ pivot[0]
    forged = bytes(changed[:-4]) + tail.to_bytes(4, "little")
    assert crc32c(forged) == wanted
    assert forged != raw
    return forged


async def test_a_broker_with_a_key_lists_only_pieces_that_it_copied_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = await world_with_records(tmp_path, 20)
    await world.stop()
    before = {path.name for path in (world.folder / "pieces").rglob("*.piece")}
    keyed = World(tmp_path, 7, backup_key=KEY)
    await keyed.start()
    assert await keyed.round()
    await keyed.stop()
    assert "copying all logs again" in caplog.text
    newest = choose(BackupFolder(world.folder, key=KEY))
    named = {file for part in newest.parts.values() for file in part.files()}
    assert named
    assert not named & before
    await done(_restoring(BackupFolder(world.folder, key=KEY), tmp_path / "restored"))


def test_restore_warns_of_a_missing_mac_and_with_a_key_refuses_unless_overridden(
    folder: Path, tmp_path: Path
) -> None:
    headrace = Headrace("127.0.0.1:1")
    key = {"HEADRACE_BROKER__BACKUP_KEY": KEY.decode()}
    restore = ("backup", "restore", str(folder), "--data")
    refused = headrace.run(*restore, str(tmp_path / "a"), env=key)
    assert (refused.code, "HR-BACKUP-MAC" in refused.err, "it has no MAC" in refused.err) == (1, True, True)
    assert not (tmp_path / "a").exists()
    for number, (words, environment) in enumerate(((("--accept-unauthentic",), key), ((), None))):
        done = headrace.ok(*restore, str(tmp_path / f"b{number}"), *words, env=environment)
        assert "not authenticated: it has no MAC" in done.err


def test_a_key_is_read_from_a_file_or_the_environment_and_has_a_minimum_length(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(KEY + b"\n")
    assert read_key(BrokerSettings(backup_key_file=path)) == KEY
    environment = {"HEADRACE_BROKER__BACKUP_KEY": KEY.decode()}
    loaded = load(environment=environment)
    assert read_key(loaded.settings.broker) == KEY
    assert KEY.decode() not in f"{loaded.settings}{[*loaded.shown()]}"
    assert read_key(BrokerSettings()) is None
    for settings, reason in (
        (BrokerSettings(backup_key="short"), "5 bytes"),
        (BrokerSettings(backup_key_file=tmp_path / "absent"), "cannot read broker.backup_key"),
        (BrokerSettings(backup_key="x", backup_key_file=path), "both set"),
    ):
        with pytest.raises(ConfigError, match=reason):
            read_key(settings)
