"""Answering what clients ask of a provider's compaction, for upstreams that have none."""
