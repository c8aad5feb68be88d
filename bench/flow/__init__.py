"""Flows, views, stores and settings, measured against the same work written by hand."""
