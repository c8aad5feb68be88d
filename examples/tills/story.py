"""Three stories of one flow: two code bases and one (``lambda``), yesterday again (``replay-day``), and three ways in
which state comes back (``state-back``).

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
from headrace.client.progress_log import current
from headrace.errors import HeadraceError
from headrace.runtime.rebuilding import rebuild
from headrace.runtime.run import Run

__all__ = ["Rows", "Told", "batch_by_hand", "morning", "play", "two_days"]

Rows = dict[tuple[str, str], tuple[Decimal, int]]
"""By shop and day: what was taken, in how many payments."""

YESTERDAY = date(2026, 3, 1)
_SHOPS = ("harbour", "market", "station")
_WAYS = {
    "checkpoint": "its checkpoint",
    "changelog": "its changelog, into a view that was lost",
    "replay": "a replay of its input",
}
_TOGETHER = 600
_MORNING = 50


@dataclass
class Told:
    """What the story found, for whoever wants to hold it against something else."""

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
    """Payments that the flow's generation had read when somebody last looked."""


def two_days(seed: int = 1) -> list[Any]:
    """Payments of yesterday and today. The till at the station is older: it writes its local time, two hours ahead."""
    rng = random.Random(seed)
    events: list[Any] = []
    for number in range(_TOGETHER):
        at = datetime(2026, 3, 1, tzinfo=UTC) + timedelta(minutes=48 * 60 * number / _TOGETHER)
        payment = _payment(rng, f"p{number:04}", at)
        events.append(_older(payment) if payment.shop == "station" else payment)
    return events


def morning(seed: int = 2) -> list[Payment]:
    """What comes later, on the day that is open."""
    rng = random.Random(seed)
    began = datetime(2026, 3, 2, 23, 58, tzinfo=UTC)
    return [_payment(rng, f"m{number:04}", began + timedelta(seconds=number)) for number in range(_MORNING)]


def _payment(rng: random.Random, name: str, at: datetime) -> Payment:
    amount = Decimal(rng.randrange(100, 10_000)) / 100
    return Payment(name, rng.choice(_SHOPS), amount, at, rng.random() < 0.05)


def _older(payment: Payment) -> tuple[bytes, bytes]:
    local = (payment.at + timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M:%S.%f+02:00")
    value = {
        "payment_id": payment.payment_id,
        "shop": payment.shop,
        "amount": str(payment.amount),
        "at": local,
        "voided": payment.voided,
    }
    return payment.payment_id.encode(), json.dumps(value).encode()


def play(stage: Stage) -> Told:
    stage.declare(app)
    stage.write(payments, two_days())
    _read_by_a_group(stage)
    with stage.running(app) as run:
        stage.settle(run)
    stream = _served(stage, app.name, "takings")
    by_hand, same_function = _two_code_bases(stage, stream)
    offset, batch = _group_at(stage), _batch(stage)
    replayed = _yesterday_again(stage, stream)
    told = Told(
        stream, by_hand, same_function, replayed, offset, _group_at(stage), batch, _batch(stage), {}, {}, ""
    )
    stage.say(f"  the group is still at offset {told.offset_after}, the flow at batch {told.batch_after}")
    _state_comes_back(stage, told)
    return told


# 59, lambda


def batch_by_hand(records: list[Message]) -> Rows:
    """The nightly job, which somebody else has written for the same report. Each line of it looks right."""
    sums: dict[tuple[str, str], tuple[float, int]] = {}
    for record in records:
        payment = json.loads(record.value() or b"")
        if payment["voided"]:
            continue
        place = payment["shop"], payment["at"][:10]
        amount, count = sums.get(place, (0.0, 0))
        sums[place] = amount + float(payment["amount"]), count + 1
    return {place: (Decimal(f"{amount:.2f}"), count) for place, (amount, count) in sums.items()}


def _two_code_bases(stage: Stage, stream: Rows) -> tuple[Rows, Rows]:
    stage.say("lambda: a batch job beside the stream")
    by_hand = batch_by_hand(stage.read(payments.name))
    stage.say(f"  written a second time: {_differing(by_hand, stream)} rows differ")
    same_function = _rows(sum_days(_history(stage)).collect())
    stage.say(f"  the flow's own function: {_differing(same_function, stream)} rows differ")
    return by_hand, same_function


def _history(stage: Stage) -> DataFrame:
    """All payments, as a plain DataFrame."""
    rows = []
    for record in stage.read(payments.name):
        told = json.loads(record.value() or b"", parse_float=Decimal)
        at = datetime.fromisoformat(told["at"])
        rows.append(
            (told["payment_id"], told["shop"], Decimal(told["amount"]), at, bool(told.get("voided", False)))
        )
    shape = "payment_id string, shop string, amount decimal(12,2), at timestamp, voided boolean"
    return stage.spark().createDataFrame(rows, shape)


def _differing(found: Rows, expected: Rows) -> str:
    keys = found.keys() | expected.keys()
    return f"{sum(found.get(key) != expected.get(key) for key in keys)} of {len(keys)}"


# 13, replay-day


def _yesterday_again(stage: Stage, stream: Rows) -> Rows:
    stage.say("replay-day: yesterday once more, into an output of its own")
    again = _replay(YESTERDAY)
    with stage.running(again) as run:
        stage.settle(run)
    replayed = _served(stage, again.name, "takings_again")
    before = {key: row for key, row in stream.items() if key[1] == str(YESTERDAY)}
    stage.say(f"  {_differing(replayed, before)} rows are other than what was derived then")
    return replayed


def _replay(day: date) -> App:
    """Another app, as somebody else might write it: it reads the same topic, and nobody notices."""
    replay = App("tills-replay")
    source = replay.topic(payments.name, Payment, key="payment_id", time="at", late=LATE)
    again = replay.topic("till-takings-again", key=["shop", "day"])

    @replay.flow(reads=[source], writes=again, name="sum_yesterday")
    def sum_yesterday(payments: DataFrame) -> DataFrame:
        return sum_days(payments.where(F.to_date("at") == F.lit(day)))

    replay.view("takings_again", again)
    return replay


def _read_by_a_group(stage: Stage) -> None:
    """Somebody who has read all of it, and whose offset is not to be moved."""
    consumer = stage.cluster.consumer({"group.id": "till-report"})
    place = TopicPartition(payments.name, 0, stage.cluster.ends(payments.name)[0])
    consumer.commit(offsets=[place], asynchronous=False)
    consumer.close()


def _group_at(stage: Stage) -> int:
    consumer = stage.cluster.consumer({"group.id": "till-report"})
    (place,) = consumer.committed([TopicPartition(payments.name, 0)], 30)
    consumer.close()
    return int(place.offset)


def _batch(stage: Stage) -> int:
    progress = current(stage.cluster, sum_days.progress_topic)
    assert progress is not None
    assert progress.last is not None
    return progress.last.batch


# 57, state-back


def _state_comes_back(stage: Stage, told: Told) -> None:
    stage.say("state-back: a process ends, and with it what it had in memory")
    told.rows_in = _rows_in(stage)
    stage.write(payments, list(morning()))
    stage.say(f"  a sum that was in memory only: {_MORNING} of {_TOGETHER + _MORNING} payments are in it")

    with stage.running(app) as run:
        _again(stage, told, "checkpoint", run)
        for end in ("", "-wal", "-shm"):
            (stage.data / f"{app.name}.db{end}").unlink(missing_ok=True)
        _again(stage, told, "changelog", run)
    shutil.rmtree(stage.settings.checkpoints / sum_days.name)
    try:
        with stage.running(app) as run:
            stage.settle(run)
    except HeadraceError as error:
        told.refused = error.code
        stage.say(f"  without its checkpoint the flow does not start: {error.code}")
    spark, quiet = stage.spark(), lambda line: None
    rebuild(app, stage.settings, stage.cluster, [sum_days.name], tell=quiet, spark=spark)
    with stage.running(app) as run:
        _again(stage, told, "replay", run)
    same = all(rows == told.back["checkpoint"] for rows in told.back.values())
    stage.say(f"  the same {len(told.back['replay'])} rows each time: {'yes' if same else 'NO'}")


def _again(stage: Stage, told: Told, how: str, run: Run) -> None:
    before = 0 if how == "replay" else told.rows_in
    began = time.monotonic()
    stage.settle(run)
    stage.served(app, app.views)
    told.back[how] = _served(stage, app.name, "takings")
    told.rows_in = _rows_in(stage)
    told.read_again[how] = told.rows_in - before
    stage.say(f"  from {_WAYS[how]}: {told.read_again[how]} payments read, {time.monotonic() - began:.1f} s")


def _rows_in(stage: Stage) -> int:
    """How many payments the flow's generation has read so far."""
    progress = current(stage.cluster, sum_days.progress_topic)
    return progress.last.totals.rows_in if progress is not None and progress.last is not None else 0


# Looking


def _served(stage: Stage, name: str, view: str) -> Rows:
    with closing(sqlite3.connect(stage.data / f"{name}.db")) as store:
        rows = store.execute(f'SELECT shop, day, amount, payments FROM "{view}"').fetchall()  # noqa: S608
    return _rows(rows)


def _rows(found: list[Any]) -> Rows:
    return {(shop, str(day)): (Decimal(amount), count) for shop, day, amount, count in found}


if __name__ == "__main__":
    on_stage(play)
