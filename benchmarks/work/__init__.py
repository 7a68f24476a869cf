"""Tool results, calls that change files and plans that the benchmarks of the record judge, each in two halves."""
