"""The log, measured against Apache Kafka."""
