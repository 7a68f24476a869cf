"""Decisions, values in and values out. Here: settings, prices, numbers, model profiles, words of tools, tables."""
