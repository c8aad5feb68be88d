"""Derives a flow's rows again from the log, independently of the running flow. ``verify`` compares both."""
