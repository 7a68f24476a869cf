"""What turns a chat request into what is sent for it: cases, decisions, drafts, compactions and their summaries."""
