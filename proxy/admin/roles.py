"""The roles of those who use our own pages, and the groups of roles that pages and endpoints are for."""

from typing import Literal

Role = Literal["nobody", "owner", "operator", "tenant"]

# Figures are not for a tenant's viewers: they are of all tenants. What names sessions is for nobody without a sign-in.
FIGURES: frozenset[Role] = frozenset({"nobody", "owner", "operator"})
SIGNED_IN: frozenset[Role] = frozenset({"owner", "operator", "tenant"})
OPERATORS: frozenset[Role] = frozenset({"owner", "operator"})
EVERYBODY: frozenset[Role] = FIGURES | SIGNED_IN
