"""Texts of clients, fit to be shown."""


def printable(text: str, most: int) -> str:
    """As much of a text as may stand in headers and logs."""
    text = text[:most]
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text)
