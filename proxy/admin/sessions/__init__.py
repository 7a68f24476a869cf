"""Pages and API of sessions: the list, one session, its records, and actions on them."""
