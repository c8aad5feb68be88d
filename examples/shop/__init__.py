"""A shop: derives sales, revenue, a ranking and interest from three topics: products, orders and clicks.

products   a table: the products and their prices
orders     events: a customer ordered a product
clicks     events: a session opened a product's page

enrich_orders     orders, each with the product's data at the time when the flow read the order
sum_revenue       revenue per product and minute
rank_products     total revenue and number of pieces per product
count_clicks      clicks per product and minute

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
    """If a product is not in the table yet, its orders have no name and no amount."""
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
    """Totals without a time window, one row per product. So the state grows with the number of products."""
    return sales.groupBy("product_id").agg(F.sum("amount").alias("amount"), F.sum("quantity").alias("pieces"))


@app.flow(reads=[clicks], writes=interest)
def count_clicks(clicks: DataFrame) -> DataFrame:
    counted = clicks.groupBy("product_id", F.window("at", "1 minute").alias("window")).count()
    return counted.select("product_id", F.col("window.start").alias("minute"), F.col("count").alias("looks"))


app.view("products", products, store=SQLite())
app.view("sales", sales, store=SQLite())
app.view("revenue", revenue, store=SQLite())
app.view("ranking", ranking, store=SQLite())
app.view("interest", interest, store=SQLite())
