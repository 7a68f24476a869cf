"""The dialect of /v1/messages."""
