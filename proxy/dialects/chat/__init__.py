"""The dialect of /v1/chat/completions."""
