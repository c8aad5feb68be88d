"""Where every view stands, in one answer: for lists that are looked at again and again."""
