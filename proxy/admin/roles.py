"""The roles of visitors, and the groups of roles for pages and endpoints."""

from typing import Literal

Role = Literal["nobody", "owner", "operator", "tenant"]

# Figures are of all tenants, so a tenant's viewers do not see them. Pages that name sessions need a sign-in.
FIGURES: frozenset[Role] = frozenset({"nobody", "owner", "operator"})
SIGNED_IN: frozenset[Role] = frozenset({"owner", "operator", "tenant"})
OPERATORS: frozenset[Role] = frozenset({"owner", "operator"})
EVERYBODY: frozenset[Role] = FIGURES | SIGNED_IN
