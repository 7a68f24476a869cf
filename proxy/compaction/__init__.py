"""From a request to its prompt: plan, compaction, short forms, recall, prefetch, explanation."""
