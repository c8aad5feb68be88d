"""Tills: the revenue of each shop per day, from the payments at all its tills.

payments   events: amount, shop, and whether the payment was voided
takings    derived: revenue and number of payments, per shop and day

headrace run examples.tills:app
python -m examples.tills.story
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace import App, Digits
from headrace.stores import SQLite

app = App("tills")


@dataclass(frozen=True)
class Payment:
    payment_id: str
    shop: str
    amount: Annotated[Decimal, Digits(12, 2)]
    at: datetime
    voided: bool = False


LATE = timedelta(days=3)
payments = app.topic("till-payments", Payment, key="payment_id", time="at", late=LATE)
takings = app.topic("till-takings", key=["shop", "day"])


@app.flow(reads=[payments], writes=takings)
def sum_days(payments: DataFrame) -> DataFrame:
    """Days are in UTC. Voided payments do not count."""
    days = payments.where("NOT voided").groupBy("shop", F.window("at", "1 day").alias("window"))
    summed = days.agg(F.sum("amount").alias("amount"), F.count(F.lit(1)).alias("payments"))
    return summed.select("shop", F.to_date("window.start").alias("day"), "amount", "payments")


app.view("takings", takings, store=SQLite())
