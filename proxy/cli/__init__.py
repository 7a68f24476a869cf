"""The command line, a module for each command; the server as a process."""
