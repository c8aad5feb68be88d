"""Routes with which operators inspect the log: all topics, their records, and consumer groups."""
