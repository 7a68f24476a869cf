"""The record of a compaction: contents, prompts, summary checks, rendering, lineage and search."""
