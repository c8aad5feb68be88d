"""Pruning removes restore points by their age, and pieces that no restore point needs."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.backup.folder import BackupFolder
from headrace.broker.backup.index import DroppedPiece, kept_names, kept_restore_points, removable_pieces
from headrace.broker.backup.manifest import ManifestName
from headrace.broker.backup.restore_points import check, choose
from headrace.testing.clock import DrivenClock
from tests.backup.workload import World

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


@given(st.lists(st.integers(0, 40 * DAY), max_size=200), st.integers(0, 30 * DAY))
def test_pruning_retains_fewer_old_restore_points_and_always_the_newest(
    ages: list[int], keep_ms: int
) -> None:
    now = 100 * DAY
    names = [
        ManifestName(number, now - age, number, "00000000")
        for number, age in enumerate(sorted(ages, reverse=True))
    ]
    kept = kept_restore_points(names, now, keep_ms)
    assert kept == sorted(set(kept))
    assert kept[-1:] == names[-1:]
    assert {name for name in names if now - name.restore_point_ms < HOUR} <= set(kept)
    for name in names:
        age = now - name.restore_point_ms
        if HOUR <= age <= keep_ms:
            slot = MINUTE if age < DAY else HOUR
            assert any(point.restore_point_ms // slot == name.restore_point_ms // slot for point in kept)
    assert len(kept) <= 1 + len(names)
    # A second pruning at the same time removes nothing.
    assert kept_restore_points(kept, now, keep_ms) == kept


def test_the_number_of_restore_points_is_bounded() -> None:
    now = 9 * DAY
    every_half_minute = [ManifestName(n, ms, n, "0" * 8) for n, ms in enumerate(range(0, now, 30_000))]
    assert len(kept_restore_points(every_half_minute, now, 7 * DAY)) < 120 + 24 * 60 + 24 * 7


def test_a_base_manifest_is_retained_while_other_manifests_refer_to_it() -> None:
    names = [ManifestName(n, n, 3 if n > 3 else n, "0" * 8) for n in range(1, 8)]
    assert kept_names(names, [names[6]]) == {names[2], names[6]}


@given(st.sets(st.integers(1, 30)), st.integers(1, 30), st.integers(0, 10))
def test_a_piece_is_removed_when_no_retained_restore_point_needs_it(
    kept: set[int], created: int, life: int
) -> None:
    dropped = DroppedPiece("events/0", "piece", created, created + life)
    points = [ManifestName(n, n, n, "0" * 8) for n in sorted(kept)]
    named_by = [n for n in kept if created <= n < created + life]
    assert (removable_pieces([dropped], points) == []) == bool(named_by)


async def test_the_folder_has_only_the_files_of_its_restore_points(tmp_path: Path) -> None:
    clock = DrivenClock()
    world = World(tmp_path, 11, clock=clock, backup_keep_ms=2 * HOUR)
    await world.start()
    await world.prepare()
    folder = BackupFolder(world.folder)
    for number in range(40):
        for _ in range(4):
            await world.step()
        clock.advance(300)
        assert await world.round()
        if number == 8:
            await world.stop()
            # Leftovers of a killed process.
            leftover = folder.piece("groups", "00000000000000000000-000000000000-9999999999-deadbeef.piece")
            leftover.write_bytes(b"half")
            (folder.manifests / "x.json.new").write_bytes(b"half")
            await world.start()
    names = folder.names()
    assert names[0].restore_point_ms >= clock.now_ms() - 3 * HOUR
    named: set[tuple[str, str]] = set()
    for name in names:
        manifest = folder.load(name, names)
        assert not check(folder, manifest).damaged
        named |= {(log_id, file) for log_id, part in manifest.parts.items() for file in part.files()}
    assert set(folder.piece_sizes()) == named
    assert not list(world.folder.rglob("*.new"))
    most = max(len(run.pieces) for part in manifest.parts.values() for run in part.segments)
    assert most <= 2 * 7, "pieces were not merged"
    await world.stop()


async def test_a_restore_point_has_the_wall_clock_time_even_after_a_long_downtime(
    tmp_path: Path,
) -> None:
    clock = DrivenClock()
    world = World(tmp_path, 5, clock=clock)
    await world.start()
    await world.prepare()
    await world.stop()
    before_ms = clock.now_ms()
    # After a downtime of days the broker does not trust its clock for an hour. In that hour it must neither delete
    # restore points nor name new ones.
    clock.advance(2 * DAY / 1000)
    await world.start()
    await world.send_record()
    clock.advance(5)
    assert await world.round()
    folder = BackupFolder(world.folder)
    newest = choose(folder)
    assert newest.taken_ms == clock.now_ms()
    assert newest.restore_point_ms < before_ms + DAY
    assert choose(folder, at_ms=clock.now_ms() - DAY).taken_ms <= before_ms
    backup = world.call.broker.backup
    assert backup is not None
    assert backup.status.last_restore_point_ms == clock.now_ms()
    await world.stop()
