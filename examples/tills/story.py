"""Three stories about one flow: two code bases compared with one (``lambda``), yesterday derived again
(``replay-day``), and three ways to restore state (``state-back``).

python -m examples.tills.story
"""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from confluent_kafka import Message, TopicPartition
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from examples.stage import Stage, on_stage
from examples.tills import LATE, Payment, app, payments, sum_days
from headrace import App
from headrace.client.progress import current
from headrace.errors import HeadraceError
from headrace.runtime.rebuild import rebuild
from headrace.runtime.run import Run

__all__ = ["Outcome", "Rows", "batch_by_hand", "morning", "play", "two_days"]

Rows = dict[tuple[str, str], tuple[Decimal, int]]
"""Revenue and number of payments, by shop and day."""

YESTERDAY = date(2026, 3, 1)
_SHOPS = ("harbour", "market", "station")
_WAYS = {
    "checkpoint": "the checkpoint of the flow",
    "changelog": "the topic of the flow, for a lost view",
    "replay": "a replay of the payments",
}
_PAYMENTS_OF_TWO_DAYS = 600
_LATER_PAYMENTS = 50


@dataclass
class Outcome:
    """The results of the story, for its test."""

    stream: Rows
    by_hand: Rows
    same_function: Rows
    replayed: Rows
    offset_before: int
    offset_after: int
    batch_before: int
    batch_after: int
    back: dict[str, Rows]
    read_again: dict[str, int]
    refused: str
    rows_in: int = 0
    """The number of payments that the flow's generation had read at the last check."""


def two_days(seed: int = 1) -> list[Any]:
    """Return payments of yesterday and today. The old till at the station writes local time, two hours ahead."""
    rng = random.Random(seed)
    events: list[Any] = []
    for number in range(_PAYMENTS_OF_TWO_DAYS):
        at = datetime(2026, 3, 1, tzinfo=UTC) + timedelta(minutes=48 * 60 * number / _PAYMENTS_OF_TWO_DAYS)
        payment = _payment(rng, f"p{number:04}", at)
        events.append(_payment_of_old_till(payment) if payment.shop == "station" else payment)
    return events


def morning(seed: int = 2) -> list[Payment]:
    """Return later payments of the current day."""
    rng = random.Random(seed)
    first_at = datetime(2026, 3, 2, 23, 58, tzinfo=UTC)
    return [
        _payment(rng, f"m{number:04}", first_at + timedelta(seconds=number))
        for number in range(_LATER_PAYMENTS)
    ]


def _payment(rng: random.Random, name: str, at: datetime) -> Payment:
    amount = Decimal(rng.randrange(100, 10_000)) / 100
    return Payment(name, rng.choice(_SHOPS), amount, at, rng.random() < 0.05)


def _payment_of_old_till(payment: Payment) -> tuple[bytes, bytes]:
    local = (payment.at + timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M:%S.%f+02:00")
    value = {
        "payment_id": payment.payment_id,
        "shop": payment.shop,
        "amount": str(payment.amount),
        "at": local,
        "voided": payment.voided,
    }
    return payment.payment_id.encode(), json.dumps(value).encode()


def play(stage: Stage) -> Outcome:
    stage.declare(app)
    stage.write(payments, two_days())
    _commit_group_offset(stage)
    with stage.running(app) as run:
        stage.settle(run)
    stream = _served(stage, app.name, "takings")
    by_hand, same_function = _two_code_bases(stage, stream)
    offset, batch = _group_at(stage), _batch(stage)
    replayed = _yesterday_again(stage, stream)
    outcome = Outcome(
        stream, by_hand, same_function, replayed, offset, _group_at(stage), batch, _batch(stage), {}, {}, ""
    )
    stage.say(
        f"  the group is still at offset {outcome.offset_after}, the flow at batch {outcome.batch_after}"
    )
    _state_comes_back(stage, outcome)
    return outcome


# The story lambda


def batch_by_hand(records: list[Message]) -> Rows:
    """The nightly job: a second implementation of the same report. Each of its lines looks correct."""
    sums: dict[tuple[str, str], tuple[float, int]] = {}
    for record in records:
        payment = json.loads(record.value() or b"")
        if payment["voided"]:
            continue
        key = payment["shop"], payment["at"][:10]
        amount, count = sums.get(key, (0.0, 0))
        sums[key] = amount + float(payment["amount"]), count + 1
    return {key: (Decimal(f"{amount:.2f}"), count) for key, (amount, count) in sums.items()}


def _two_code_bases(stage: Stage, stream: Rows) -> tuple[Rows, Rows]:
    stage.say("lambda: a batch job and a stream compute the same report")
    by_hand = batch_by_hand(stage.read(payments.name))
    stage.say(f"  a second implementation: {_differing(by_hand, stream)} rows differ")
    same_function = _rows(sum_days(_history(stage)).collect())
    stage.say(f"  the flow's own function: {_differing(same_function, stream)} rows differ")
    return by_hand, same_function


def _history(stage: Stage) -> DataFrame:
    """Return all payments as a plain DataFrame."""
    rows = []
    for record in stage.read(payments.name):
        payment = json.loads(record.value() or b"", parse_float=Decimal)
        at = datetime.fromisoformat(payment["at"])
        rows.append(
            (
                payment["payment_id"],
                payment["shop"],
                Decimal(payment["amount"]),
                at,
                bool(payment.get("voided", False)),
            )
        )
    schema = "payment_id string, shop string, amount decimal(12,2), at timestamp, voided boolean"
    return stage.spark().createDataFrame(rows, schema)


def _differing(rows: Rows, expected: Rows) -> str:
    keys = rows.keys() | expected.keys()
    return f"{sum(rows.get(key) != expected.get(key) for key in keys)} of {len(keys)}"


# The story replay-day


def _yesterday_again(stage: Stage, stream: Rows) -> Rows:
    stage.say("replay-day: yesterday derived again, into a separate output")
    again = _replay(YESTERDAY)
    with stage.running(again) as run:
        stage.settle(run)
    replayed = _served(stage, again.name, "takings_again")
    before = {key: row for key, row in stream.items() if key[1] == str(YESTERDAY)}
    stage.say(f"  {_differing(replayed, before)} rows differ from those derived at that time")
    return replayed


def _replay(day: date) -> App:
    """Return the app of another team. It reads the same topic without affecting other readers."""
    replay = App("tills-replay")
    source = replay.topic(payments.name, Payment, key="payment_id", time="at", late=LATE)
    again = replay.topic("till-takings-again", key=["shop", "day"])

    @replay.flow(reads=[source], writes=again, name="sum_yesterday")
    def sum_yesterday(payments: DataFrame) -> DataFrame:
        return sum_days(payments.where(F.to_date("at") == F.lit(day)))

    replay.view("takings_again", again)
    return replay


def _commit_group_offset(stage: Stage) -> None:
    """Commit the offset of a group that has read all payments. The replay must not change this offset."""
    consumer = stage.cluster.consumer({"group.id": "till-report"})
    position = TopicPartition(payments.name, 0, stage.cluster.ends(payments.name)[0])
    consumer.commit(offsets=[position], asynchronous=False)
    consumer.close()


def _group_at(stage: Stage) -> int:
    consumer = stage.cluster.consumer({"group.id": "till-report"})
    (position,) = consumer.committed([TopicPartition(payments.name, 0)], 30)
    consumer.close()
    return int(position.offset)


def _batch(stage: Stage) -> int:
    progress = current(stage.cluster, sum_days.progress_topic)
    assert progress is not None
    assert progress.last is not None
    return progress.last.batch


# The story state-back


def _state_comes_back(stage: Stage, outcome: Outcome) -> None:
    stage.say("state-back: a process ends and loses the sums in its memory")
    outcome.rows_in = _rows_in(stage)
    stage.write(payments, list(morning()))
    stage.say(
        f"  a sum only in memory: after the restart it has {_LATER_PAYMENTS} of"
        f" {_PAYMENTS_OF_TWO_DAYS + _LATER_PAYMENTS} payments"
    )

    with stage.running(app) as run:
        _restore(stage, outcome, "checkpoint", run)
        for end in ("", "-wal", "-shm"):
            (stage.data / f"{app.name}.db{end}").unlink(missing_ok=True)
        _restore(stage, outcome, "changelog", run)
    shutil.rmtree(stage.settings.checkpoints / sum_days.name)
    try:
        with stage.running(app) as run:
            stage.settle(run)
    except HeadraceError as error:
        outcome.refused = error.code
        stage.say(f"  without the checkpoint the flow does not start: {error.code}")
    spark, quiet = stage.spark(), lambda line: None
    rebuild(app, stage.settings, stage.cluster, [sum_days.name], note=quiet, spark=spark)
    with stage.running(app) as run:
        _restore(stage, outcome, "replay", run)
    same = all(rows == outcome.back["checkpoint"] for rows in outcome.back.values())
    stage.say(f"  the same {len(outcome.back['replay'])} rows each time: {'yes' if same else 'NO'}")


def _restore(stage: Stage, outcome: Outcome, way: str, run: Run) -> None:
    before = 0 if way == "replay" else outcome.rows_in
    started_s = time.monotonic()
    stage.settle(run)
    stage.served(app, app.views)
    outcome.back[way] = _served(stage, app.name, "takings")
    outcome.rows_in = _rows_in(stage)
    outcome.read_again[way] = outcome.rows_in - before
    stage.say(
        f"  from {_WAYS[way]}: {outcome.read_again[way]} payments read, {time.monotonic() - started_s:.1f} s"
    )


def _rows_in(stage: Stage) -> int:
    """Return how many payments the flow's generation has read so far."""
    progress = current(stage.cluster, sum_days.progress_topic)
    return progress.last.totals.rows_in if progress is not None and progress.last is not None else 0


# Reading the views


def _served(stage: Stage, name: str, view: str) -> Rows:
    with closing(sqlite3.connect(stage.data / f"{name}.db")) as store:
        rows = store.execute(f'SELECT shop, day, amount, payments FROM "{view}"').fetchall()  # noqa: S608
    return _rows(rows)


def _rows(table_rows: list[Any]) -> Rows:
    return {(shop, str(day)): (Decimal(amount), count) for shop, day, amount, count in table_rows}


if __name__ == "__main__":
    on_stage(play)
