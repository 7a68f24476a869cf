"""Recorded conversations played through policies, offline: tokens, prefix reuse and cost of each policy."""
