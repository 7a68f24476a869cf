"""A black-box benchmark: generated sessions through the real server, and what their records say against the truth."""
