"""Subscriptions to views: the rows at a position, then every batch, by WebSocket or as server-sent events."""
