"""The prompt of a request: plan, draft, compaction, short forms, recall, prefetch, explanation."""
