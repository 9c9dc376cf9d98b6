"""Which allocator the command's own process uses, so that memory that was freed does not stay.

Arrow's usual one (mimalloc) keeps what was freed, per thread, for quicker use: some 40 MB that no budget counts
(`docs/decisions/0016-memory-of-the-command.md`). The system's allocator gives large blocks back at once, and keeps
the small ones in one arena per thread, of which two are enough here.
"""

from __future__ import annotations

import contextlib
import ctypes
import os

POOL_VARIABLE = "ARROW_DEFAULT_MEMORY_POOL"
#: glibc's numbers for arenas, and for how large a block is mapped by itself and how much free memory stays. Left alone,
#: the last two grow with what is freed. The Parquet writer needs buffers of a megabyte again and again, and a row group
#: of 16 MB comes and goes: blocks and a heap that are returned each time cost a page fault per 4 KB when they are taken
#: again, in sum as long as a third of the join.
_SETTINGS = {-8: 2, -3: 16 << 20, -1: 32 << 20}


def use_system_allocator() -> None:
    """Let Arrow take its memory from the system, unless the user has chosen otherwise.

    Arrow asks the environment, once, when it first allocates; `pyarrow.set_memory_pool` would leave out what its C++
    code allocates by itself, such as the Parquet writer. The variable is removed again, so that child processes (Spark
    and its workers) do as they would without this command.
    """
    if POOL_VARIABLE in os.environ:
        return
    os.environ[POOL_VARIABLE] = "system"
    try:
        import pyarrow as pa

        pa.default_memory_pool()
    finally:
        del os.environ[POOL_VARIABLE]
    # Other C libraries have no such call, and no such arenas.
    with contextlib.suppress(OSError, AttributeError):
        change = ctypes.CDLL(None).mallopt
        for setting, value in _SETTINGS.items():
            change(setting, value)
