"""Explanations of pasted requests, which are never sent."""
