"""The user's words as data: sentences read by tables for each language, kept, superseded and fitted."""
