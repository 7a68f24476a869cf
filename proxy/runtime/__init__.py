"""Tools of a process: failing open, deadlines, work in the background, file descriptors."""
