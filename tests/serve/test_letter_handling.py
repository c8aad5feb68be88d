"""Dead letters are corrected, dismissed and settled."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from faults.views.follower_thread import following
from faults.wait import until
from headrace import App
from headrace.cli.app_state import lag_monitor
from tests.serve.dead_letter_app import DeadLetterApp


@dataclass(frozen=True)
class _WiderOrder:
    order_id: str
    pieces: str


def test_a_corrected_value_is_checked_and_written_with_its_key(dead_letters: DeadLetterApp) -> None:
    dead_letters.letter(b'{"order_id": "o1", "pieces": "many"}', (dead_letters.topic, 0, 7))
    path, letter = f"/v1/dead/{dead_letters.dead}/correct", {"partition": 0, "offset": 0}
    refused = dead_letters.http.post(path, {"letter": letter, "value": '{"order_id": "o1"}'}).expect(200)
    assert (refused["state"], refused["error"]["code"]) == ("failed", "HR-DEAD-CORRECTION")
    assert dead_letters.records() == []
    value = '{"order_id": "o2", "pieces": 3}'
    done = dead_letters.http.post(path, {"letter": letter, "value": value}).expect(200)
    assert (done["action"], done["totals"]["written"]) == ("correct", 1)
    ((key, written, headers),) = dead_letters.records()
    assert (key, written, headers["__headrace.replay.corrected"]) == (b"o2", value.encode(), b"true")
    (shown,) = dead_letters.letters()["letters"]
    assert (shown["state"], shown["change"]["corrected"], "many" in shown["value"]) == (
        "replayed",
        True,
        True,
    )


def test_a_dismissed_letter_is_skipped_and_states_why(dead_letters: DeadLetterApp) -> None:
    dead_letters.letter(b"{}", (dead_letters.topic, 0, 1))
    dead_letters.letter(b"{}", (dead_letters.topic, 0, 2))
    path = f"/v1/dead/{dead_letters.dead}/dismiss"
    named = [{"partition": 0, "offset": 0}]
    assert dead_letters.http.post(path, {"letters": named}).expect(400)["code"] == "HR-SERVE-REQUEST"
    done = dead_letters.http.post(path, {"letters": named, "reason": "a test"}).expect(200)
    assert done["totals"]["dismissed"] == 1
    assert dead_letters.records() == []
    (open_letter,) = dead_letters.letters(state="open")["letters"]
    (dismissed,) = dead_letters.letters(state="dismissed")["letters"]
    assert (open_letter["offset"], dismissed["change"]["reason"]) == (1, "a test")
    replayed = dead_letters.replay()
    assert (replayed["totals"]["written"], replayed["totals"]["skipped"]) == (1, 1)
    assert "dismissed: a test" in replayed["results"][0]["why"]


def test_the_measure_of_alerts_counts_only_open_letters(dead_letters: DeadLetterApp, tmp_path: Path) -> None:
    for offset in (1, 2, 2):
        dead_letters.letter(b"{}", (dead_letters.topic, 0, offset))
    view = dead_letters.app.views[0].name
    with contextlib.closing(lag_monitor(dead_letters.cluster, dead_letters.app, tmp_path)) as monitor:

        def dead() -> float | None:
            return monitor.measure(full=True).lags["view", view].measures["dead"]

        assert dead() == 2
        path = f"/v1/dead/{dead_letters.dead}/dismiss"
        named = [{"partition": 0, "offset": 0}]
        dead_letters.http.post(path, {"letters": named, "reason": "a test"}).expect(200)
        assert dead() == 1
        dead_letters.replay()
        assert dead() == 0


def test_the_letters_of_a_view_are_settled_when_its_rebuild_has_processed_their_records(
    dead_letters: DeadLetterApp, tmp_path: Path
) -> None:
    dead_letters.write(dead_letters.topic, b'{"order_id": "o1", "pieces": "many"}')
    dead_letters.write(dead_letters.topic, b'{"order_id": "o2"}')
    with following(dead_letters.cluster, dead_letters.app.views[0], [], tmp_path) as followed:
        until(lambda: followed.follower.status.dead == 2, "the letters")
    assert [letter["state"] for letter in dead_letters.letters()["letters"]] == ["open", "open"]

    app = App(dead_letters.name)
    orders = app.topic(dead_letters.topic, _WiderOrder, key="order_id")
    view = app.view(f"{dead_letters.name}-view", orders)
    with following(dead_letters.cluster, view, [], tmp_path) as followed:
        until(lambda: followed.follower.status.state == "following", "the rebuild")
    newer, older = dead_letters.letters()["letters"]
    assert (newer["state"], len(newer["refusals"])) == ("open", 2)
    assert [refusal["settled"] for refusal in newer["refusals"]] == [True, False]
    assert (older["state"], len(older["refusals"])) == ("settled", 1)
    replayed = dead_letters.replay()
    assert (replayed["totals"]["written"], replayed["totals"]["skipped"]) == (1, 1)
    assert [len(dead_letters.records()), dead_letters.replay(force=True)["totals"]["written"]] == [3, 2]
