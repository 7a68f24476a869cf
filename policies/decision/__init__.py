"""Decisions about a request: budget, cut, plan and retries."""
