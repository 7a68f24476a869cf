"""Errors of upstreams: overflows with their limits, rejected output limits, rejected forms."""
