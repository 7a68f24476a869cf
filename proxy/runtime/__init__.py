"""Tools of a process: failing open, deadlines, background work, threads, file descriptors, the heap."""
