"""The user's words as data, behind one door: read, merged, superseded, and fitted into a record."""

from policies.ledger.entries import Entry, line
from policies.ledger.merging import extract, fit, merge, told
from policies.ledger.naming import numbered, supersede, without_superseded_section

__all__ = ["Entry", "extract", "fit", "line", "merge", "numbered", "supersede", "told", "without_superseded_section"]
