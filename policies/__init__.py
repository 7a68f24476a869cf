"""What to do with a conversation: pure decisions, values in and values out. Carrying them out is `proxy`'s work."""
