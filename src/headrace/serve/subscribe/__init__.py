"""Subscriptions to views. A subscriber receives the rows at one position and then every change, by WebSocket or as
server-sent events.
"""
