"""A disk in memory that loses and tears writes and fails as disks do, to test the log."""
