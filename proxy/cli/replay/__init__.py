"""Recorded conversations played through the policies, offline: what each of them sends, reuses and costs."""
