"""Runs everything that an app needs on one machine: the log, the flows, and the followers that update the views."""
