"""What is sent for a request: case, decision, draft, compaction, cooling, work done ahead, explanation."""
