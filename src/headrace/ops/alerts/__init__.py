"""Alerts: rules about lag that fire before retention deletes unread records, and the history of alerts."""
