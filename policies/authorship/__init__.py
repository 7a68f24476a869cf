"""Whose words a text in a user's name is: a person's, a harness's, a report, a client's summary, or rules."""
