"""Monitors the app: its parts (topics, flows, views), their lag, and the cause if they fall behind."""
