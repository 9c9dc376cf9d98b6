"""A writer that is killed at any time and started again, until all of its batches are there: each row once.

python -m tests.lake.kills --format delta --kills 60 --seed 1

The writer does what a query does: it goes on from its last finished batch, asks the table whether it has that batch,
and writes it if not. It is killed after a time that is drawn anew for each run, so over many runs it dies everywhere:
in its own code, in that of delta-rs, pyiceberg, SQLite or the kernel.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.lake.lakes import FORMATS, READERS_OF, SCHEMA, expected, found_by, open_lake, write_batch

_APP = "query"
_ROWS = 12
_COMPACTED = 4


def write_all(folder: str, format: str, batches: int, started: str) -> None:
    """The writer, from the batch after the last one of which it knows that it is finished."""
    place = Path(folder)
    checkpoint = place / "checkpoint"
    table = open_lake(place, format)
    table.prepare(SCHEMA, ["p"])
    Path(started).touch()
    for number in range(int(checkpoint.read_text()) if checkpoint.exists() else 0, batches):
        if not table.done(_APP, number):
            write_batch(table, _APP, number, tasks=_COMPACTED if number % 2 else 1, rows=_ROWS)
        fresh = place / "checkpoint.new"
        fresh.write_text(str(number + 1))
        fresh.replace(checkpoint)


def torment(folder: Path, format: str, kills: int, seed: int) -> int:
    """Kill the writer so often, and let it finish; the number of batches that there must be."""
    chance = random.Random(seed)
    context = multiprocessing.get_context("spawn")
    batches, done = kills + 2, 0
    while done < kills:
        started = folder / f"started-{done}"
        writer = context.Process(target=write_all, args=(str(folder), format, batches, str(started)))
        writer.start()
        # Half of them in the whole of their life, the others in their first batches, where they mend.
        _await(started, writer)
        time.sleep(chance.choice((0.6, 0.15)) * chance.random())
        if writer.pid is not None and writer.is_alive():
            os.kill(writer.pid, signal.SIGKILL)
            done += 1
        writer.join()
        if writer.exitcode not in (0, -signal.SIGKILL):
            raise RuntimeError(f"the writer failed with status {writer.exitcode}")
        if writer.exitcode == 0:
            batches += 2
    last = context.Process(target=write_all, args=(str(folder), format, batches, str(folder / "last")))
    last.start()
    last.join()
    if last.exitcode:
        raise RuntimeError(f"the writer failed with status {last.exitcode}")
    return batches


def _await(path: Path, writer: BaseProcess) -> None:
    while not path.exists() and writer.is_alive():
        time.sleep(0.005)


def wrong_readers(folder: Path, format: str, batches: int) -> list[str]:
    """The readers that do not see each row once."""
    want = expected(range(batches), _ROWS)
    return [reader for reader in READERS_OF[format] if found_by(reader, folder, format) != want]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lake.kills")
    parser.add_argument("--format", choices=FORMATS, action="append")
    parser.add_argument("--kills", type=int, default=70, help="of each format")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    status = 0
    for format in given.format or FORMATS:
        with tempfile.TemporaryDirectory(prefix="kills-") as place:
            batches = torment(Path(place), format, given.kills, given.seed)
            wrong = wrong_readers(Path(place), format, batches)
            orphans = len(open_lake(Path(place), format).clean(0))
            after = wrong_readers(Path(place), format, batches)
        rows = batches * _ROWS
        print(f"{format}: {given.kills} kills, {batches} batches, {rows} rows, {orphans} orphans; ", end="")
        print("each row once" if not wrong + after else f"wrong for {', '.join(wrong + after)}")
        status |= bool(wrong + after)
    return status


if __name__ == "__main__":
    sys.exit(main())
