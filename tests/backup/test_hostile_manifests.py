"""A manifest that somebody else wrote: its names become no other path, and with a key its MAC must be right."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.broker.backup.authenticity import Authenticity, read_key
from headrace.broker.backup.choosing import choose
from headrace.broker.backup.errors import BackupDamaged, BackupUnauthentic
from headrace.broker.backup.folder import BackupFolder
from headrace.broker.backup.reading import DamagedPiece
from headrace.broker.backup.restoring import Restoring
from headrace.checksum import crc32c
from headrace.clock import SystemClock
from headrace.errors import ConfigError
from headrace.settings import BrokerSettings
from headrace.settings.loading import load
from tests.backup.test_troubles import done, shop
from tests.backup.workload import UnsyncedFiles, World
from tests.cli.runner import Headrace

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
Change = Callable[[dict[str, Any]], None]


def _newest(folder: Path) -> Path:
    return max((folder / "manifests").iterdir())


def _forge(folder: Path, change: Change) -> None:
    """Change the newest manifest, with a checksum that is right."""
    path = _newest(folder)
    body = msgspec.json.decode(path.read_bytes().splitlines()[0])
    change(body)
    raw = msgspec.json.encode(body)
    path.write_bytes(raw + b"\n%08x\n" % crc32c(raw))


def _tree(home: Path) -> set[str]:
    return {str(path.relative_to(home)) for path in home.rglob("*")}


def _moved(body: dict[str, Any], place: str) -> None:
    """A partition under another place."""
    found = next(one for one in body["parts"] if "/" in one)
    body["parts"][place] = body["parts"].pop(found)


def _renamed(body: dict[str, Any], file: str) -> None:
    part = next(part for place, part in body["parts"].items() if "/" in place and part["segments"])
    part["segments"][0][1][0][0] = file


@pytest.fixture(scope="module")
def backup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that a broker without a key has written."""

    async def written() -> Path:
        world = await shop(tmp_path_factory.mktemp("hostile"), 30)
        await world.stop()
        return world.folder

    return asyncio.run(written())


@pytest.fixture
def folder(backup: Path, tmp_path: Path) -> Path:
    """A copy of its newest moment, as a full manifest."""
    found = BackupFolder(backup)
    newest = choose(found)
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
        lambda body: body["topics"].update({"../..": "t"}),
        lambda body: body["topics"].update({"a" * 32: "../../t"}),
        lambda body: body.update(restored=[{"at_ms": 0, "manifest": "../x", "ends": {}}]),
        lambda body: body.update(line="../line"),
        lambda body: next(iter(body["parts"].values()))["segments"].append([-1, []]),
        lambda body: next(iter(body["parts"].values()))["segments"].append([2**80, []]),
    ],
)
async def test_a_manifest_with_a_name_of_no_known_pattern_is_refused_before_the_first_write(
    folder: Path, tmp_path: Path, change: Change
) -> None:
    (tmp_path / "canary").write_text("the canary")
    _forge(folder, change)
    before = _tree(tmp_path)
    with pytest.raises(BackupDamaged, match="is damaged"):
        Restoring(
            BackupFolder(folder),
            tmp_path / "world" / "restored",
            choose(BackupFolder(folder)),
            {},
            clock=SystemClock(),
        ).run()
    assert _tree(tmp_path) == before
    assert not Path("/tmp/headrace-escaped").exists()


async def test_a_manifest_under_the_name_of_another_is_refused(folder: Path) -> None:
    _forge(folder, lambda body: body.update(sequence=body["sequence"] + 1))
    with pytest.raises(BackupDamaged, match="it says that it is"):
        choose(BackupFolder(folder))


@pytest.mark.parametrize("kind", ["link", "pipe"])
async def test_a_piece_that_is_no_regular_file_is_damaged(folder: Path, tmp_path: Path, kind: str) -> None:
    piece = next((folder / "pieces").rglob("*.piece"))
    moved = tmp_path / "moved"
    piece.rename(moved)
    if kind == "link":
        piece.symlink_to(moved)
    else:
        os.mkfifo(piece)
    found = BackupFolder(folder)
    with pytest.raises(DamagedPiece, match="cannot be read"):
        await done(Restoring(found, tmp_path / "r", choose(found), {}, clock=SystemClock()))


def _restoring(folder: BackupFolder, data: Path) -> Restoring:
    return Restoring(folder, data, choose(folder), {}, clock=SystemClock(), files=UnsyncedFiles())


async def test_a_backup_with_a_key_restores_with_that_key_and_with_no_other(tmp_path: Path) -> None:
    world = await shop(tmp_path, 20, backup_key=KEY)
    await world.step()
    await world.stop()
    await done(_restoring(BackupFolder(world.folder, key=KEY), tmp_path / "right"))
    for key, found in ((OTHER_KEY, Authenticity.WRONG), (None, Authenticity.UNCHECKED)):
        folder = BackupFolder(world.folder, key=key)
        assert folder.authenticity(folder.names()[-1]) is found
        if key is not None:
            with pytest.raises(BackupUnauthentic, match="MAC is wrong"):
                choose(folder)
    told = BackupFolder(world.folder, key=OTHER_KEY, accepts_unauthentic=True)
    await done(_restoring(told, tmp_path / "anyway"))
    await done(_restoring(BackupFolder(world.folder), tmp_path / "unchecked"))


async def test_with_a_key_a_forged_manifest_and_one_without_a_mac_are_refused(tmp_path: Path) -> None:
    world = await shop(tmp_path, 20, backup_key=KEY)
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


async def test_a_piece_with_the_checksum_of_another_is_told_from_it_by_its_sha256(tmp_path: Path) -> None:
    world = await shop(tmp_path, 20, backup_key=KEY)
    await world.stop()
    folder = BackupFolder(world.folder, key=KEY)
    newest = choose(folder)
    place, part = next((place, part) for place, part in newest.parts.items() if "/" in place and part.size)
    piece = part.segments[0].pieces[0]
    path = folder.piece(place, piece.file)
    path.write_bytes(_same_crc(path.read_bytes()))
    with pytest.raises(DamagedPiece, match="SHA-256"):
        await done(_restoring(folder, tmp_path / "r"))


def _same_crc(raw: bytes) -> bytes:
    """Other bytes of the same length and CRC-32C: the last four are chosen for it."""
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
    found = bytes(changed[:-4]) + tail.to_bytes(4, "little")
    assert crc32c(found) == wanted
    assert found != raw
    return found


async def test_a_broker_with_a_key_names_nothing_that_it_did_not_ship_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = await shop(tmp_path, 20)
    await world.stop()
    before = {path.name for path in (world.folder / "pieces").rglob("*.piece")}
    keyed = World(tmp_path, 7, backup_key=KEY)
    await keyed.start()
    assert await keyed.round()
    await keyed.stop()
    assert "everything is shipped again" in caplog.text
    newest = choose(BackupFolder(world.folder, key=KEY))
    named = {file for part in newest.parts.values() for file in part.files()}
    assert named
    assert not named & before
    await done(_restoring(BackupFolder(world.folder, key=KEY), tmp_path / "restored"))


def test_the_command_says_when_a_mac_is_missing_and_refuses_where_a_key_is_set_unless_told_otherwise(
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
        assert "not known to be authentic: it has no MAC" in done.err


def test_a_key_comes_from_a_file_or_the_environment_and_is_long_enough(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(KEY + b"\n")
    assert read_key(BrokerSettings(backup_key_file=path)) == KEY
    environment = {"HEADRACE_BROKER__BACKUP_KEY": KEY.decode()}
    loaded = load(environment=environment)
    assert read_key(loaded.settings.broker) == KEY
    assert KEY.decode() not in f"{loaded.settings}{[*loaded.shown()]}"
    assert read_key(BrokerSettings()) is None
    for settings, why in (
        (BrokerSettings(backup_key="short"), "5 bytes"),
        (BrokerSettings(backup_key_file=tmp_path / "absent"), "cannot read broker.backup_key"),
        (BrokerSettings(backup_key="x", backup_key_file=path), "both set"),
    ):
        with pytest.raises(ConfigError, match=why):
            read_key(settings)
