"""Memory that was freed stays with the process."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import sys
import numpy as np
from fedstill.common.allocator import keep_freed_memory

def resident_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 >> 20

if sys.argv[1] == "kept":
    keep_freed_memory()
before = resident_mib()
array = np.ones(100 << 20, np.uint8)
assert resident_mib() - before > 90
del array
print(resident_mib() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told so")
@pytest.mark.parametrize(("how", "stays"), [("kept", True), ("as it comes", False)])
def test_freed_memory_stays_with_the_process_if_it_is_told_to_keep_it(how: str, stays: bool) -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
    assert (int(ran.stdout) > 90) is stays
