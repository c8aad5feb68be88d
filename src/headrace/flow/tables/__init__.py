"""Tables that flows join: their current rows, and their rows at earlier offsets."""
