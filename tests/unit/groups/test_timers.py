"""Time-outs by the steady clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.groups.timers import Timer, Timers

from .rig import DrivenClock


class Bench:
    def __init__(self) -> None:
        self.clock = DrivenClock()
        self.woken = 0
        self.timers = Timers(self.clock, self._wake)
        self.ran: list[str] = []

    def _wake(self) -> None:
        self.woken += 1

    def timer(self, name: str) -> Timer:
        return Timer(lambda: self.ran.append(name))

    def pass_ms(self, ms: int) -> None:
        self.clock.steady_s += ms / 1000
        self.timers.run_due()


def test_a_timer_runs_once_when_its_time_has_come() -> None:
    bench = Bench()
    timer = bench.timer("a")
    bench.timers.start(timer, 1_000)
    assert len(bench.timers) == 1
    bench.pass_ms(999)
    assert bench.ran == []
    bench.pass_ms(1)
    bench.pass_ms(1_000)
    assert bench.ran == ["a"]
    assert len(bench.timers) == 0
    assert bench.timers.next_deadline() is None


def test_a_timer_that_is_started_again_is_moved() -> None:
    bench = Bench()
    later, sooner = bench.timer("later"), bench.timer("sooner")
    bench.timers.start(later, 1_000)
    bench.timers.start(later, 3_000)
    bench.timers.start(sooner, 3_000)
    bench.timers.start(sooner, 1_000)
    bench.pass_ms(1_000)
    assert bench.ran == ["sooner"]
    bench.pass_ms(2_000)
    assert bench.ran == ["sooner", "later"]
    bench.pass_ms(10_000)
    assert bench.ran == ["sooner", "later"]


def test_a_stopped_timer_does_not_run_and_can_be_started_again() -> None:
    bench = Bench()
    timer = bench.timer("a")
    bench.timers.start(timer, 1_000)
    bench.timers.stop(timer)
    bench.timers.stop(timer)
    bench.pass_ms(2_000)
    assert bench.ran == []
    bench.timers.start(timer, 1_000)
    bench.pass_ms(1_000)
    assert bench.ran == ["a"]


def test_one_that_runs_can_stop_or_restart_another_that_is_due_too() -> None:
    bench = Bench()
    second, third = bench.timer("second"), bench.timer("third")

    def act() -> None:
        bench.timers.stop(second)
        bench.timers.start(third, 500)

    first = Timer(act)
    for timer, ms in ((first, 1_000), (second, 1_001), (third, 1_002)):
        bench.timers.start(timer, ms)
    bench.pass_ms(2_000)
    assert bench.ran == []
    bench.pass_ms(500)
    assert bench.ran == ["third"]


def test_the_owner_is_told_only_when_it_must_look_sooner() -> None:
    bench = Bench()
    first, second, third = (bench.timer(name) for name in "abc")
    bench.timers.start(first, 1_000)
    bench.timers.start(second, 2_000)
    bench.timers.start(first, 4_000)
    assert bench.woken == 1
    bench.timers.start(third, 500)
    assert bench.woken == 2


def test_putting_off_never_gives_more_than_a_fresh_start_would() -> None:
    bench = Bench()
    short, long = bench.timer("short"), bench.timer("long")
    bench.timers.start(short, 1_000)
    bench.timers.start(long, 100_000)
    bench.clock.steady_s += 60
    bench.timers.put_off(60)
    bench.timers.run_due()
    assert bench.ran == []
    bench.pass_ms(999)
    assert bench.ran == []
    bench.pass_ms(1)
    assert bench.ran == ["short"]
    bench.pass_ms(99_000)
    assert bench.ran == ["short", "long"]


def test_a_timer_that_was_moved_is_put_off_once() -> None:
    bench = Bench()
    timer = bench.timer("a")
    bench.timers.start(timer, 100_000)
    bench.timers.start(timer, 50_000)
    bench.clock.steady_s += 30
    bench.timers.put_off(10)
    bench.pass_ms(29_999)
    assert bench.ran == []
    bench.pass_ms(1)
    assert bench.ran == ["a"]


def test_stopped_timers_do_not_pile_up() -> None:
    bench = Bench()
    for _ in range(10_000):
        timer = bench.timer("x")
        bench.timers.start(timer, 10**9)
        bench.timers.stop(timer)
    assert len(bench.timers._heap) < 1_000


Step = tuple[str, int, int]


@given(
    st.lists(
        st.tuples(st.sampled_from(["start", "stop", "pass"]), st.integers(0, 4), st.integers(0, 2_000)),
        max_size=60,
    )
)
def test_timers_run_exactly_when_a_plain_list_of_deadlines_says(steps: list[Step]) -> None:
    bench = Bench()
    timers = [bench.timer(str(index)) for index in range(5)]
    deadlines: dict[str, float] = {}
    for step, index, ms in steps:
        if step == "start":
            bench.timers.start(timers[index], ms)
            deadlines[str(index)] = bench.clock.steady_s + ms / 1000
        elif step == "stop":
            bench.timers.stop(timers[index])
            deadlines.pop(str(index), None)
        else:
            bench.pass_ms(ms)
            due = {name for name, deadline in deadlines.items() if deadline <= bench.clock.steady_s}
            assert set(bench.ran) == due
            assert len(bench.ran) == len(due)
            bench.ran.clear()
            for name in due:
                del deadlines[name]
        assert len(bench.timers) == len(deadlines)


def test_the_first_timer_wakes_the_owner_though_a_stopped_one_stands_before_it() -> None:
    bench = Bench()
    stopped = bench.timer("stopped")
    bench.timers.start(stopped, 100)
    bench.timers.stop(stopped)
    woken = bench.woken
    bench.timers.start(bench.timer("later"), 5_000)
    assert bench.woken == woken + 1


def test_a_stopped_timer_that_is_started_for_later_wakes_the_owner() -> None:
    bench = Bench()
    timer = bench.timer("a")
    bench.timers.start(timer, 100)
    bench.timers.stop(timer)
    woken = bench.woken
    bench.timers.start(timer, 5_000)
    assert bench.woken == woken + 1
