"""A data directory that an earlier state of Headrace wrote, and the app that wrote it."""
