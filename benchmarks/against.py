"""Is this tree as fast as another one? Both join the same stream side by side, turn by turn.

    git worktree add /tmp/before HEAD~20
    python benchmarks/against.py /tmp/before                      every operator, R = 1 M, budget 10 % of R
    python benchmarks/against.py /tmp/before sweepjoin ssbj --turns 60
    python benchmarks/against.py /tmp/before sweepjoin --rows 10000000 --drain --batch 10000 --batch 100000

`--drain` finishes every batch at once, as on Spark. R is in the page cache. The other tree makes a page store of it,
which both read: of two equal stores one was seen to be read faster by 5 %, whoever reads it. A tree that cannot read
the other's store makes one of its own.

Each tree runs in a process of its own, which waits while the other one works; whoever begins a pair of turns changes
with every pair. The figure is the median of the pairs' ratios, so a machine that changes its speed touches both sides.
Half of the pairs are of processes that were started in the other order: the one that is started first was seen to be
slower by up to 5 %, with the same tree on both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

ROOT = Path(__file__).resolve().parents[1]
_SEED, _EXPONENT, _ROW_BYTES = 1, 1.0, 120
#: of the stream, which then begins again
BATCHES = 40
_TURN_ROWS = 200_000


def make_data(folder: Path, rows: int, batch: int, batches: int) -> None:
    """R and S, made by this tree: a tree that is compared needs no generators, only the product."""
    from semistream.lab.workloads.relation import SyntheticMaster, SyntheticStream

    master, stream = SyntheticMaster(rows, _SEED), SyntheticStream(rows, _EXPONENT, _SEED)
    for name, parts in (("r", master.batches()), (f"s-{batch}", stream.batches(0, batch * batches, batch))):
        path = folder / f"{name}.arrow"
        if not path.exists():
            schema = master.schema if name == "r" else stream.schema
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
                for part in parts:
                    writer.write_batch(part)


def child(setting: dict[str, object]) -> None:
    """One tree: a turn for every line that comes in, its seconds for answer."""
    import semistream

    data = Path(str(setting["data"]))
    store = data / "r"
    if (store / "CURRENT").exists():
        try:
            semistream.open_master(store).close()
        except semistream.SemiStreamError:
            store = data / f"r-{setting['tree']}"
    if not (store / "CURRENT").exists():
        with pa.memory_map(str(data / "r.arrow")) as file, pa.ipc.open_file(file) as reader:
            semistream.build_pages(reader.read_all(), store, on="k")
    with pa.OSFile(str(data / f"s-{setting['batch']}.arrow")) as file, pa.ipc.open_file(file) as reader:
        stream = [reader.get_batch(number) for number in range(reader.num_record_batches)]
    memory = int(int(setting["rows"]) * _ROW_BYTES * float(setting["share"]))
    with semistream.open_join(str(setting["algorithm"]), master=store, on="k", how="inner", memory=memory) as join:
        at = 0

        def turn() -> tuple[float, int]:
            nonlocal at
            out = 0
            since = time.perf_counter()
            for _ in range(int(setting["batches_per_turn"])):
                for joined in join.push(stream[at % len(stream)]):
                    out += joined.num_rows
                if setting["drain"]:
                    for joined in join.drain():
                        out += joined.num_rows
                at += 1
            return time.perf_counter() - since, out

        for _ in range(int(setting["warm"])):
            turn()
        print("ready", flush=True)
        for _ in sys.stdin:
            print(json.dumps(turn()), flush=True)


def compared(other: Path, setting: dict[str, object], turns: int) -> tuple[float, float, float]:
    """How fast this tree is as a multiple of the other: the median over pairs of turns and its quartiles."""
    ratios = [ratio for order in (-1, 1) for ratio in _pairs(other, setting, turns // 2, order)]
    low, median, high = statistics.quantiles(ratios, n=4)
    return median, low, high


def _pairs(other: Path, setting: dict[str, object], turns: int, order: int) -> list[float]:
    """The ratios of pairs of turns of two processes, started in this order or the other way round."""
    trees = {"this": ROOT / "src", "other": other / "src"}
    running = {}
    for name, tree in list(trees.items())[::order]:
        command = [sys.executable, __file__, str(other), "--child", json.dumps({**setting, "tree": name})]
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        running[name] = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tree
        )
        assert running[name].stdout.readline() == "ready\n", f"{name} did not start"  # type: ignore[union-attr]
    ratios = []
    try:
        for number in range(turns):
            seconds = {}
            for name in ("this", "other") if number % 2 else ("other", "this"):
                process = running[name]
                assert process.stdin is not None
                assert process.stdout is not None
                print(file=process.stdin, flush=True)
                seconds[name] = float(json.loads(process.stdout.readline())[0])
            ratios.append(seconds["other"] / seconds["this"])
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="a checkout of the tree to compare with")
    parser.add_argument("algorithms", nargs="*", help="operators (default: all)")
    parser.add_argument("--rows", type=int, default=1_000_000, help="tuples of R")
    parser.add_argument("--share", type=float, default=0.1, help="the budget, as a part of R")
    parser.add_argument("--batch", type=int, action="append", help="tuples per batch, may be repeated (100,000)")
    parser.add_argument("--drain", action="store_true", help="finish every batch at once")
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--warm", type=int, default=8, help="turns before the measured ones")
    parser.add_argument("--batches-per-turn", type=int, help=f"default: as many as have {_TURN_ROWS:,} tuples")
    parser.add_argument("--data", type=Path, help="where R and S are made and removed again (default: the usual one)")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(json.loads(options.child))
        return
    names = options.algorithms
    if not names:
        from semistream.algorithms.registry import ALGORITHMS

        names = list(ALGORITHMS)
    print(f"{'operator':14} {'batch':>10} this / other (quartiles over {options.turns} pairs of turns)")
    medians = []
    with tempfile.TemporaryDirectory(dir=options.data) as data:
        for batch in options.batch or [100_000]:
            make_data(Path(data), options.rows, batch, BATCHES)
            for name in names:
                setting = {
                    "algorithm": name,
                    "rows": options.rows,
                    "share": options.share,
                    "batch": batch,
                    "drain": options.drain,
                    "batches_per_turn": options.batches_per_turn or max(_TURN_ROWS // batch, 1),
                    "warm": options.warm,
                    "data": data,
                }
                median, low, high = compared(options.other.resolve(), setting, options.turns)
                medians.append(median)
                print(f"{name:14} {batch:>10,} {median:.3f} ({low:.3f} – {high:.3f})", flush=True)
    print(f"{'all':14} {'':>10} {statistics.geometric_mean(medians):.3f}, least {min(medians):.3f}")


if __name__ == "__main__":
    main()
