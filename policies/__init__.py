"""Decisions, values in and values out. Here: settings, prices, numbers, model profiles and words of tools."""
