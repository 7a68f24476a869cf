"""The user's words as data: sentences read, compared and carried from record to record."""
