"""The user's statements: sentences parsed with tables for each language, stored, superseded and fitted."""
