"""Secrets in texts: their formats, and masks that replace them."""
