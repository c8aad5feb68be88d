"""The rules of the project, as tests."""
