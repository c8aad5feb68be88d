"""The log as an operator meets it: all topics, their records and how to find one, and consumer groups."""
