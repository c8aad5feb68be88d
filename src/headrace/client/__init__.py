"""The log, as everything outside the broker sees it: through a stock Kafka client, whoever answers."""
