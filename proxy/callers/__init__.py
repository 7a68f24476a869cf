"""Callers and their requests: tenants, keys and usage, admission, session labels, request lines and headers."""
