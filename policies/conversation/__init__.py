"""Messages and their structure: outline, digests, timestamps, transcripts."""
