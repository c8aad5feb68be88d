"""Checks and prepares a flow's function before it runs. Only this package reads and rewrites Spark's logical plans."""
