"""A shop: what is sold, to whom, and how it goes, all derived from three topics of facts.

products   a table: what there is to buy, and at which price
orders     events: who ordered what
clicks     events: who looked at what

enrich_orders     orders, each with its product as it was known when the order was read
sum_revenue       revenue per product and minute
rank_products     revenue and pieces per product, over all time
count_clicks      looks per product and minute

headrace run examples.shop:app
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace import App
from headrace.stores import SQLite

app = App("shop")


class Category(StrEnum):
    BOOKS = "books"
    GARDEN = "garden"
    KITCHEN = "kitchen"


@dataclass(frozen=True)
class Product:
    product_id: str
    name: str
    category: Category
    price: Decimal


@dataclass(frozen=True)
class Order:
    order_id: str
    customer_id: str
    product_id: str
    quantity: int
    at: datetime
    note: str | None = None


@dataclass(frozen=True)
class Click:
    click_id: str
    session_id: str
    product_id: str
    at: datetime


products = app.table("products", Product, key="product_id")
orders = app.topic("orders", Order, key="order_id", time="at", late=timedelta(seconds=30))
clicks = app.topic("clicks", Click, key="session_id", time="at", late=timedelta(seconds=30))

sales = app.topic("sales", key="order_id", time="at", late=timedelta(seconds=30))
revenue = app.topic("revenue", key=["product_id", "minute"])
ranking = app.topic("ranking", key="product_id")
interest = app.topic("interest", key=["product_id", "minute"])


@app.flow(reads=[orders, products], writes=sales)
def enrich_orders(orders: DataFrame, products: DataFrame) -> DataFrame:
    """An order of a product that is not in the table yet is kept, without a name and an amount."""
    known = products.select("product_id", "name", "category", "price")
    return (
        orders.join(known, "product_id", "left")
        .withColumn("amount", (F.col("quantity") * F.col("price")).cast("decimal(20,2)"))
        .select(
            "order_id", "customer_id", "product_id", "name", "category", "quantity", "price", "amount", "at"
        )
    )


@app.flow(reads=[sales], writes=revenue)
def sum_revenue(sales: DataFrame) -> DataFrame:
    per_minute = sales.groupBy("product_id", F.window("at", "1 minute").alias("window"))
    summed = per_minute.agg(F.sum("amount").alias("amount"), F.count(F.lit(1)).alias("orders"))
    return summed.select("product_id", F.col("window.start").alias("minute"), "amount", "orders")


@app.flow(reads=[sales], writes=ranking, unbounded=True)
def rank_products(sales: DataFrame) -> DataFrame:
    """Over all time; there are as many rows as products, so its state may grow with them."""
    return sales.groupBy("product_id").agg(F.sum("amount").alias("amount"), F.sum("quantity").alias("pieces"))


@app.flow(reads=[clicks], writes=interest)
def count_clicks(clicks: DataFrame) -> DataFrame:
    looks = clicks.groupBy("product_id", F.window("at", "1 minute").alias("window")).count()
    return looks.select("product_id", F.col("window.start").alias("minute"), F.col("count").alias("looks"))


app.view("products", products, store=SQLite())
app.view("sales", sales, store=SQLite())
app.view("revenue", revenue, store=SQLite())
app.view("ranking", ranking, store=SQLite())
app.view("interest", interest, store=SQLite())
