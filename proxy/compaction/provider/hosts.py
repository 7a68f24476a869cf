"""Upstreams that support the providers' compaction protocols (docs/client-compaction.md)."""

from urllib.parse import urlsplit

from proxy.config.settings import Upstream
from proxy.dialects.base import Dialect


def answers_compactions(upstream: Upstream, dialect: Dialect) -> bool | None:
    """Return True if the upstream compacts for the clients that ask for it; None if unknown."""
    if upstream.native_compaction != "auto":
        return upstream.native_compaction == "yes"
    if upstream.provider == "litellm":
        return False
    host = urlsplit(upstream.base_url).hostname or ""
    is_listed = any(host == name or (name[0] == "." and host.endswith(name)) for name in dialect.compacts_at)
    return is_listed or None
