"""Followers. Each follower reads a topic and keeps one view in a store up to date."""
