"""A compaction's record: what it holds, prompts and checks for its summary, its text, lineage and search."""
