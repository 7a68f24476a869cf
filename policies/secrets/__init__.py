"""Secrets in texts: their formats, and masks in their place."""
