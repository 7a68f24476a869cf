"""Messages and what their form says: outline, digests, timestamps, transcripts."""
