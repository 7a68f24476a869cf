"""Responses to clients' requests for a provider's compaction, for upstreams without one."""
