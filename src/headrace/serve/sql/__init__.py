"""Read-only SQL over the views of an app, whatever stores they live in."""
