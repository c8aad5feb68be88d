"""What a backup keeps and what it lets go: moments by their age, pieces by the moments that name them."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.backup.checking import check
from headrace.broker.backup.choosing import choose
from headrace.broker.backup.folder import BackupFolder
from headrace.broker.backup.manifest import ManifestName
from headrace.broker.backup.pruning import Dropped, kept_moments, kept_names, removable
from headrace.testing.faulty_clock import DrivenClock
from tests.backup.workload import World

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


@given(st.lists(st.integers(0, 40 * DAY), max_size=200), st.integers(0, 30 * DAY))
def test_moments_get_fewer_with_age_and_the_newest_stays(ages: list[int], keep_ms: int) -> None:
    now = 100 * DAY
    names = [
        ManifestName(number, now - age, number, "00000000")
        for number, age in enumerate(sorted(ages, reverse=True))
    ]
    kept = kept_moments(names, now, keep_ms)
    assert kept == sorted(set(kept))
    assert kept[-1:] == names[-1:]
    assert {name for name in names if now - name.moment_ms < HOUR} <= set(kept)
    for name in names:
        age = now - name.moment_ms
        if HOUR <= age <= keep_ms:
            slot = MINUTE if age < DAY else HOUR
            assert any(one.moment_ms // slot == name.moment_ms // slot for one in kept)
    assert len(kept) <= 1 + len(names)
    # Kept again, nothing more goes.
    assert kept_moments(kept, now, keep_ms) == kept


def test_however_often_moments_are_taken_only_so_many_are_kept() -> None:
    now = 9 * DAY
    every_half_minute = [ManifestName(n, ms, n, "0" * 8) for n, ms in enumerate(range(0, now, 30_000))]
    assert len(kept_moments(every_half_minute, now, 7 * DAY)) < 120 + 24 * 60 + 24 * 7


def test_a_base_is_kept_for_what_is_told_on_top_of_it() -> None:
    names = [ManifestName(n, n, 3 if n > 3 else n, "0" * 8) for n in range(1, 8)]
    assert kept_names(names, [names[6]]) == {names[2], names[6]}


@given(st.sets(st.integers(1, 30)), st.integers(1, 30), st.integers(0, 10))
def test_a_piece_goes_when_no_moment_that_is_kept_names_it(kept: set[int], created: int, life: int) -> None:
    dropped = Dropped("events/0", "piece", created, created + life)
    moments = [ManifestName(n, n, n, "0" * 8) for n in sorted(kept)]
    named_by = [n for n in kept if created <= n < created + life]
    assert (removable([dropped], moments) == []) == bool(named_by)


async def test_the_folder_has_what_its_moments_name_and_nothing_else(tmp_path: Path) -> None:
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
            # As a process that was killed leaves it.
            leftover = folder.piece("groups", "00000000000000000000-000000000000-9999999999-deadbeef.piece")
            leftover.write_bytes(b"half")
            (folder.manifests / "x.json.new").write_bytes(b"half")
            await world.start()
    names = folder.names()
    assert names[0].moment_ms >= clock.now_ms() - 3 * HOUR
    named: set[tuple[str, str]] = set()
    for name in names:
        manifest = folder.load(name, names)
        assert not check(folder, manifest).damaged
        named |= {(place, file) for place, part in manifest.parts.items() for file in part.files()}
    assert set(folder.pieces()) == named
    assert not list(world.folder.rglob("*.new"))
    most = max(len(run.pieces) for part in manifest.parts.values() for run in part.segments)
    assert most <= 2 * 7, "pieces are joined"
    await world.stop()


async def test_a_moment_is_told_by_the_clock_on_the_wall_also_after_a_long_time_off(tmp_path: Path) -> None:
    clock = DrivenClock()
    world = World(tmp_path, 5, clock=clock)
    await world.start()
    await world.prepare()
    await world.stop()
    before_ms = clock.now_ms()
    # A start after days doubts its clock for an hour: nothing is deleted by it, and nothing may be called by it either.
    clock.advance(2 * DAY / 1000)
    await world.start()
    await world.plain()
    clock.advance(5)
    assert await world.round()
    folder = BackupFolder(world.folder)
    newest = choose(folder)
    assert newest.taken_ms == clock.now_ms()
    assert newest.moment_ms < before_ms + DAY
    assert choose(folder, at_ms=clock.now_ms() - DAY).taken_ms <= before_ms
    keeper = world.ask.broker.backup
    assert keeper is not None
    assert keeper.standing.last_moment_ms == clock.now_ms()
    await world.stop()
