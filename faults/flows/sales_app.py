"""The app that ``faults.flows.driver`` runs: one flow copies sales to the topic ``kept``, another sums the
copied sales per minute.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from headrace.app import App

__all__ = ["app"]


@dataclass(frozen=True)
class Sale:
    sale_id: str
    product_id: str
    amount: int
    at: datetime


app = App("sales")
_sales = app.topic("sales", Sale, key="sale_id", time="at", late=timedelta(hours=1), partitions=2)
_kept = app.topic("kept", key="sale_id", time="at", late=timedelta(hours=1), partitions=2)
_sums = app.topic("sums", key=["product_id", "minute"])
app.view("kept_rows", _kept)
app.view("sum_rows", _sums)


@app.flow(reads=[_sales], writes=_kept)
def keep(sales: Any) -> Any:
    return sales.where("amount > 0")


@app.flow(reads=[_kept], writes=_sums)
def sum_up(kept: Any) -> Any:
    from pyspark.sql import functions as F

    minutes = kept.groupBy("product_id", F.window("at", "1 minute").alias("window"))
    summed = minutes.agg(F.sum("amount").alias("amount"), F.count(F.lit(1)).alias("sales"))
    return summed.select("product_id", F.col("window.start").alias("minute"), "amount", "sales")
