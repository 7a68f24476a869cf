"""Threads share a heap, where the C library makes one for each."""

import platform
import subprocess
import sys

import pytest

from proxy.runtime import heap

# Each thread holds what it made until all have made theirs, so that none takes over another's arena.
_HEAPS = """
import ctypes, sys, tempfile, threading
from proxy.runtime import heap
if sys.argv[1] == "shared":
    heap.share()
all_here = threading.Barrier(8)
def work():
    held = [bytearray(20_000) for _ in range(20)]
    all_here.wait()
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
with tempfile.NamedTemporaryFile() as file:
    library = ctypes.CDLL(None)
    library.fopen.restype = ctypes.c_void_p
    told = ctypes.c_void_p(library.fopen(file.name.encode(), b"w"))
    library.malloc_info(0, told)
    library.fclose(told)
    print(file.read().count(b"<heap nr="))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_eight_threads_have_one_arena_beside_the_first_one() -> None:
    def heaps(how: str) -> int:
        return int(subprocess.run([sys.executable, "-c", _HEAPS, how], capture_output=True, check=True).stdout)

    assert heaps("shared") <= 2 < heaps("alone")


def test_another_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    heap.share()
