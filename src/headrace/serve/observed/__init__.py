"""What the app is doing: its parts and how they hang together, how they fare, and what to do where they do not."""
