"""The web UI, measured in Chromium."""
