"""Pages and API of sessions: listed, told one by one, their records, and what can be done with them."""
