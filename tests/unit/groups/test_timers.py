"""Time-outs by the steady clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.groups.timers import Timer, Timers

from .rig import DrivenClock


class TimerFixture:
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


def test_a_timer_runs_once_at_its_deadline() -> None:
    fixture = TimerFixture()
    timer = fixture.timer("a")
    fixture.timers.start(timer, 1_000)
    assert len(fixture.timers) == 1
    fixture.pass_ms(999)
    assert fixture.ran == []
    fixture.pass_ms(1)
    fixture.pass_ms(1_000)
    assert fixture.ran == ["a"]
    assert len(fixture.timers) == 0
    assert fixture.timers.next_deadline() is None


def test_restarting_a_timer_moves_its_deadline() -> None:
    fixture = TimerFixture()
    later, sooner = fixture.timer("later"), fixture.timer("sooner")
    fixture.timers.start(later, 1_000)
    fixture.timers.start(later, 3_000)
    fixture.timers.start(sooner, 3_000)
    fixture.timers.start(sooner, 1_000)
    fixture.pass_ms(1_000)
    assert fixture.ran == ["sooner"]
    fixture.pass_ms(2_000)
    assert fixture.ran == ["sooner", "later"]
    fixture.pass_ms(10_000)
    assert fixture.ran == ["sooner", "later"]


def test_a_stopped_timer_does_not_run_and_can_be_started_again() -> None:
    fixture = TimerFixture()
    timer = fixture.timer("a")
    fixture.timers.start(timer, 1_000)
    fixture.timers.stop(timer)
    fixture.timers.stop(timer)
    fixture.pass_ms(2_000)
    assert fixture.ran == []
    fixture.timers.start(timer, 1_000)
    fixture.pass_ms(1_000)
    assert fixture.ran == ["a"]


def test_a_running_timer_can_stop_or_restart_another_due_timer() -> None:
    fixture = TimerFixture()
    second, third = fixture.timer("second"), fixture.timer("third")

    def act() -> None:
        fixture.timers.stop(second)
        fixture.timers.start(third, 500)

    first = Timer(act)
    for timer, ms in ((first, 1_000), (second, 1_001), (third, 1_002)):
        fixture.timers.start(timer, ms)
    fixture.pass_ms(2_000)
    assert fixture.ran == []
    fixture.pass_ms(500)
    assert fixture.ran == ["third"]


def test_the_owner_is_woken_only_if_the_next_deadline_is_earlier() -> None:
    fixture = TimerFixture()
    first, second, third = (fixture.timer(name) for name in "abc")
    fixture.timers.start(first, 1_000)
    fixture.timers.start(second, 2_000)
    fixture.timers.start(first, 4_000)
    assert fixture.woken == 1
    fixture.timers.start(third, 500)
    assert fixture.woken == 2


def test_postponing_never_sets_a_later_deadline_than_a_restart() -> None:
    fixture = TimerFixture()
    short, long = fixture.timer("short"), fixture.timer("long")
    fixture.timers.start(short, 1_000)
    fixture.timers.start(long, 100_000)
    fixture.clock.steady_s += 60
    fixture.timers.postpone(60)
    fixture.timers.run_due()
    assert fixture.ran == []
    fixture.pass_ms(999)
    assert fixture.ran == []
    fixture.pass_ms(1)
    assert fixture.ran == ["short"]
    fixture.pass_ms(99_000)
    assert fixture.ran == ["short", "long"]


def test_a_restarted_timer_is_postponed_once() -> None:
    fixture = TimerFixture()
    timer = fixture.timer("a")
    fixture.timers.start(timer, 100_000)
    fixture.timers.start(timer, 50_000)
    fixture.clock.steady_s += 30
    fixture.timers.postpone(10)
    fixture.pass_ms(29_999)
    assert fixture.ran == []
    fixture.pass_ms(1)
    assert fixture.ran == ["a"]


def test_stopped_timers_do_not_accumulate() -> None:
    fixture = TimerFixture()
    for _ in range(10_000):
        timer = fixture.timer("x")
        fixture.timers.start(timer, 10**9)
        fixture.timers.stop(timer)
    assert len(fixture.timers._heap) < 1_000


Step = tuple[str, int, int]


@given(
    st.lists(
        st.tuples(st.sampled_from(["start", "stop", "pass"]), st.integers(0, 4), st.integers(0, 2_000)),
        max_size=60,
    )
)
def test_timers_agree_with_a_list_of_deadlines(steps: list[Step]) -> None:
    fixture = TimerFixture()
    timers = [fixture.timer(str(index)) for index in range(5)]
    deadlines: dict[str, float] = {}
    for step, index, ms in steps:
        if step == "start":
            fixture.timers.start(timers[index], ms)
            deadlines[str(index)] = fixture.clock.steady_s + ms / 1000
        elif step == "stop":
            fixture.timers.stop(timers[index])
            deadlines.pop(str(index), None)
        else:
            fixture.pass_ms(ms)
            due = {name for name, deadline in deadlines.items() if deadline <= fixture.clock.steady_s}
            assert set(fixture.ran) == due
            assert len(fixture.ran) == len(due)
            fixture.ran.clear()
            for name in due:
                del deadlines[name]
        assert len(fixture.timers) == len(deadlines)


def test_a_new_timer_wakes_the_owner_even_if_a_stopped_timer_has_an_earlier_deadline() -> None:
    fixture = TimerFixture()
    stopped = fixture.timer("stopped")
    fixture.timers.start(stopped, 100)
    fixture.timers.stop(stopped)
    woken = fixture.woken
    fixture.timers.start(fixture.timer("later"), 5_000)
    assert fixture.woken == woken + 1


def test_a_stopped_timer_that_is_started_for_later_wakes_the_owner() -> None:
    fixture = TimerFixture()
    timer = fixture.timer("a")
    fixture.timers.start(timer, 100)
    fixture.timers.stop(timer)
    woken = fixture.woken
    fixture.timers.start(timer, 5_000)
    assert fixture.woken == woken + 1
