"""Replaces the serving generation of a flow by another one: compares, decides, switches."""
