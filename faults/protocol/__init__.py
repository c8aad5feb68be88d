"""The Kafka protocol and the record format as the oracles implement them, independently of the product."""
