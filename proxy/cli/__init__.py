"""The command line, one module per command, and the server as a process."""
