"""Servers that fault runs, benchmarks and tests start: brokers, Apache Kafka, databases, Spark."""
