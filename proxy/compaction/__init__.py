"""Building prompts from requests: planning, compaction, short forms, recall, prefetch, explanation."""
