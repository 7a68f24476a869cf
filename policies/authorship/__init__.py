"""Authors of texts in a user's name: a person, a harness, a report, a client's summary, or rules."""
