"""Decisions, values in and values out: conversation, digests, cuts, budget, plan, cool zone, ladder, settings."""
