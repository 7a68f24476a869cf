"""Recognizing, in an upstream's answer, that a prompt was too long and what limit it states."""
