"""Access to the log for everything outside the broker. Uses a stock Kafka client, and works with any Kafka broker."""
