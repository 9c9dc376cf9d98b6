"""Queries on a cluster, killed again and again, must end with exactly the rows of the join.

    python -m tests.spark.soak                             all combinations, four queries side by side, 100 kills each
    python -m tests.spark.soak ssbj-left --kills 30        one of them
    python -m tests.spark.soak ssbj-left inlj-inner-delta  two, with a sink of its own for one
    python -m tests.spark.soak --kills 50 --seed 7         fewer kills, at other moments
    python -m tests.spark.soak --sink delta                written by the workers into Delta tables (parquet, iceberg)

Files -> enrich -> a sink, one query per combination, four in a program, on a standalone cluster (a master and two
workers on loopback). While their batches are open, Python workers, executors and the program itself (driver, its JVM
and the sources' processes at once) are killed with SIGKILL at random moments; a program that was killed is started
again from the checkpoints. After every kill R changes: mostly by a refresh (rows come, change and go, hot keys among
them, one of which has one row, then three, then none), now and then by a whole new build. Every row of R tells with
which version it came, so the rows of a batch must be those of one version, and no batch may have an older one than the
batch before. `test_kills.py` runs a few kills of some combinations.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from tests.spark.cluster import CONF, Cluster, cluster, kill_family, program
from tests.spark.lakes import catalog, read_all
from tests.spark.queries import started

import semistream
from semistream.lab.workloads.relation import master_batches, stream_batches
from semistream.lake.table import FORMATS
from semistream.spark import enrich, write
from semistream.spark.session import open_session
from semistream.testing import as_multiset, reference_join

COMBINATIONS = [
    ["sweepjoin-left", "opcachejoin-inner", "ssbj-left", "meshjoin-inner"],
    ["sweepjoin-inner", "opcachejoin-left", "ssbj-inner", "meshjoin-left"],
]
#: these carry tuples over from batch to batch
DELAYS = {"ssbj": "4s", "meshjoin": "4s"}
#: of a query whose rows Spark writes itself
OWN_SINK = "spark"
KINDS = ("worker", "executor", "driver")
#: how often each is killed: what comes back quickly, most
SHARES = (0.76, 0.19, 0.05)
#: how often one is killed while the queries have not yet recovered from the kill before
AMID = {"worker": 0.6, "executor": 0.3, "driver": 0.1}
N_KEYS = 20_000
COLUMNS = ["k", "m01", "m02", "m03", "m04", "m05"]
SCHEMA = "k long, seq long, qty int"
Int64s = npt.NDArray[np.int64]
_PATIENCE_SECONDS = 300
_FAILURES = 5
_REPORTED = 10
#: of so many versions one is built anew; the others are refreshes
_BUILDS = 13
#: rows that a key has one version after the other, and the part of keys that are wanted often
_ROWS_IN_TURN, _HOT = (1, 3, 0), 60


@dataclass(frozen=True)
class Run:
    """Some queries over the same files: where these are, and which joins the queries do.

    "ssbj-left" is written by Spark's own Parquet sink, "ssbj-left-delta" by the workers, into a lake of that format.
    """

    folder: str
    master_url: str
    joins: list[str]
    rows_per_file: int = 300

    def path(self, name: str) -> Path:
        return Path(self.folder) / name

    def stream(self, files: int) -> pa.Table:
        return pa.Table.from_batches(stream_batches(files * self.rows_per_file, int(N_KEYS * 1.2), 0.9, 3))

    def wanted(self) -> Int64s:
        """Keys of the stream that are asked for most, those that R lacks among them."""
        keys, counts = np.unique(self.stream(10)["k"].to_numpy(), return_counts=True)
        return np.asarray(keys[np.argsort(-counts, kind="stable")][:_HOT], dtype=np.int64)

    def touched(self, version: int) -> tuple[Int64s, pa.Table]:
        """The keys that change with a version, and all rows that they have from then on."""
        dice, wanted = np.random.default_rng(version), self.wanted()
        some = np.concatenate([dice.choice(wanted[1:], _HOT // 3), dice.integers(0, int(N_KEYS * 1.2), 100)])
        others = np.setdiff1d(some, wanted[:1])
        counts = np.append(_ROWS_IN_TURN[version % 3], dice.integers(0, 3, len(others)))
        keys = np.append(wanted[:1], others)
        rows = np.repeat(keys, counts)
        columns = {name: dice.integers(0, 1 << 40, len(rows)) for name in COLUMNS[1:]}
        return keys, pa.table({"k": rows, **columns, "version": np.full(len(rows), version)})

    def master(self, version: int) -> pa.Table:
        """R in a version; its rows tell with which one they came."""
        if version == 1:
            table = pa.Table.from_batches(master_batches(N_KEYS, 1, repeat=True)).select(COLUMNS)
            return table.append_column("version", pa.array(np.full(table.num_rows, version)))
        keys, rows = self.touched(version)
        before = self.master(version - 1)
        return pa.concat_tables([before.filter(pa.array(~np.isin(before["k"].to_numpy(), keys))), rows])

    def table(self, name: str) -> str:
        """Where the query of that name writes, or what its table is called."""
        return "db.out" if parts(name)[2] == "iceberg" else str(self.path(name) / "out")

    def prepare(self) -> None:
        self.path("in").mkdir(parents=True)
        for name in self.joins:
            self.path(name).mkdir()
        self.new_version(1)

    def new_version(self, version: int) -> None:
        """Change R: by a build, by the states of some keys, or by a change feed."""
        if version == 1 or version % _BUILDS == 0:
            semistream.build_pages(self.master(version), self.path("r"), on="k", page_rows=32, overwrite=version > 1)
            return
        keys, rows = self.touched(version)
        if version % 2:
            semistream.refresh_pages(self.path("r"), rows, deletes=pa.table({"k": keys})).close()
            return
        before = self.master(version - 1)
        gone = before.filter(pa.array(np.isin(before["k"].to_numpy(), keys)))
        kinds = ["delete"] * gone.num_rows + ["insert"] * rows.num_rows
        feed = pa.concat_tables([gone, rows]).append_column("_change_type", pa.array(kinds, pa.string()))
        feed = feed.append_column("_commit_version", pa.array(np.full(feed.num_rows, version)))
        for _ in range(2):
            # The second time it does nothing.
            semistream.refresh_pages(self.path("r"), feed, source="soak").close()

    def files(self) -> int:
        return len(list(self.path("in").glob("*.parquet")))

    def feed(self) -> None:
        """Another file."""
        number = self.files()
        start = number * self.rows_per_file
        rows = stream_batches(self.rows_per_file, int(N_KEYS * 1.2), 0.9, 3, start=start)
        pq.write_table(pa.Table.from_batches(rows), self.path("new.parquet"))
        self.path("new.parquet").rename(self.path("in") / f"{number:05d}.parquet")

    def start(self, finish: bool) -> subprocess.Popen[bytes]:
        """The program that is killed; with `finish` it ends by itself, when all files are done and nobody waits."""
        arguments = json.dumps({"run": asdict(self), "finish": finish})
        return program(["-m", "tests.spark.soak", "--run", arguments], self.path("log"))

    def begun(self) -> dict[str, int]:
        """Batches that were begun, by query."""
        return {name: _newest(self.path(name) / "checkpoint" / "offsets") for name in self.joins}

    def committed(self) -> dict[str, int]:
        return {name: _newest(self.path(name) / "checkpoint" / "commits") for name in self.joins}

    def open(self) -> list[str]:
        """Queries with a batch that was begun and is not committed."""
        committed = self.committed()
        return [name for name, number in self.begun().items() if number > committed[name]]


def parts(name: str) -> tuple[str, str, str]:
    """Algorithm, kind of join and sink of a query."""
    algorithm, how, *sink = name.split("-")
    return algorithm, how, sink[0] if sink else OWN_SINK


def _newest(folder: Path) -> int:
    """The number of batches in one of Spark's logs, of which it keeps the last hundred."""
    numbers = [int(path.name) for path in folder.glob("*") if path.name.isdigit()] if folder.is_dir() else []
    return max(numbers, default=-1) + 1


# --------------------------------------------------------------------------------------- the program that is killed


def query(run: Run, finish: bool) -> None:
    # The executors' folders are the workers': see cluster.py.
    # A kill while the first batch is noted: see "When something is wrong" in docs/operations.md.
    again = {"spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false"}
    spark = open_session("soak", run.master_url, {**CONF, **again, "spark.local.dir": str(run.path("local"))})
    try:
        queries = []
        # Each time in another order, as whoever comes first gets furthest. Spark gives the process of a Python source
        # ten seconds to start, so they must not all start at once.
        for name in random.sample(run.joins, len(run.joins)):
            start = partial(_start, spark, run, name, finish)
            queries.append(started(start) if name.split("-")[0] in DELAYS else start())
        for each in queries:
            each.awaitTermination()
    finally:
        spark.stop()


def _start(spark: SparkSession, run: Run, name: str, finish: bool) -> StreamingQuery:
    algorithm, how, sink = parts(name)
    delay, checkpoint = DELAYS.get(algorithm), run.path(name) / "checkpoint"
    df = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(run.path("in")))
    joined = enrich(
        df,
        run.path("r"),
        on="k",
        how=how,
        memory="2MB",
        algorithm=algorithm,
        max_delay=delay,
        checkpoint=checkpoint if delay else None,
    )
    if sink != OWN_SINK:
        where = {"catalog": catalog(run.path(name))} if sink == "iceberg" else {}
        trigger = "availableNow" if finish else None
        return write(joined, run.table(name), sink, checkpoint=checkpoint, trigger=trigger, **where)
    writer = joined.writeStream.format("parquet").option("path", run.table(name))
    writer = writer.option("checkpointLocation", str(checkpoint))
    return (writer.trigger(availableNow=True) if finish else writer).start()


# ------------------------------------------------------------------------------------------------- killing


@dataclass
class Account:
    """What was killed, in all and while a batch of a query was open; `failed` counts ends with an error."""

    kills: Counter[str] = field(default_factory=Counter)
    by_query: Counter[tuple[str, str]] = field(default_factory=Counter)
    failed: int = 0
    versions: int = 1


class Tormentor:
    """Keeps the queries of a run supplied with files, and kills what they run on."""

    def __init__(self, run: Run, on: Cluster, seed: int) -> None:
        self.run = run
        self.cluster = on
        self.dice = random.Random(seed)
        self.account = Account()
        self._fed = run.committed()
        self._process: subprocess.Popen[bytes] | None = None

    def torment(self, kinds: Sequence[str]) -> Account:
        """Kill one after the other, then let the queries come to their end."""
        self.run.feed()
        try:
            for kind in kinds:
                self._kill(kind)
                self.account.versions += 1
                self.run.new_version(self.account.versions)
                if self.account.kills.total() % _REPORTED == 0:
                    print(f"{self.account.kills.total()} of {len(kinds)} kills", flush=True)
            self._end()
            # At least one file meets the last version.
            self.run.feed()
            while not self._finished():
                self._count_failure()
        finally:
            self._end()
        return self.account

    def _finished(self) -> bool:
        self._process = self.run.start(finish=True)
        return self._process.wait(timeout=2 * _PATIENCE_SECONDS) == 0

    def _kill(self, kind: str) -> None:
        """At a random moment of an open batch: mostly after another one was committed, sometimes amid the recovery."""
        before = self.run.committed()
        amid = self.dice.random() < AMID[kind]
        limit = time.monotonic() + _PATIENCE_SECONDS
        killed = False
        while not killed:
            if time.monotonic() > limit:
                raise AssertionError(f"the queries stand still; see {self.run.path('log')}")
            process = self._alive()
            self._feed()
            if self.run.open() and (amid or self.run.committed() != before):
                time.sleep(self.dice.random())
                killed = self._kill_now(kind, process)
            time.sleep(0.05)

    def _kill_now(self, kind: str, process: subprocess.Popen[bytes]) -> bool:
        cut = self.run.open()
        if kind == "driver":
            kill_family(process)
        else:
            found = self.cluster.executors() if kind == "executor" else self.cluster.python_workers()
            if not found:
                return False
            try:
                self.dice.choice(found).kill()
            except psutil.NoSuchProcess:
                return False
        self.account.kills[kind] += 1
        self.account.by_query.update((name, kind) for name in cut)
        return True

    def _alive(self) -> subprocess.Popen[bytes]:
        """The program, started again if it has ended."""
        if self._process is not None and self._process.poll() is not None:
            # A program that we have killed ended with a signal.
            if self._process.returncode >= 0:
                self._count_failure()
            self._process = None
        if self._process is None:
            self._process = self.run.start(finish=False)
        return self._process

    def _count_failure(self) -> None:
        """On an overloaded machine Spark gives up on a Python process that is too slow to start."""
        self.account.failed += 1
        log = self.run.path("log").read_text(errors="replace")
        print(f"the program has ended by itself: {log.strip()[-500:]}", flush=True)
        if self.account.failed > _FAILURES:
            raise AssertionError(f"the program fails by itself: {log[-5000:]}")

    def _feed(self) -> None:
        """Two more files as soon as every query has committed a batch since the last ones."""
        now = self.run.committed()
        if all(now[name] > self._fed[name] for name in now):
            self.run.feed()
            self.run.feed()
            self._fed = now

    def _end(self) -> None:
        if self._process is not None:
            kill_family(self._process)
            self._process = None


def deaths(kills: int, seed: int) -> list[str]:
    """Kinds of processes to kill, each at least once if there are that many."""
    dice = random.Random(seed)
    chosen = [*KINDS, *dice.choices(KINDS, SHARES, k=max(kills - len(KINDS), 0))][:kills]
    return dice.sample(chosen, len(chosen))


# ------------------------------------------------------------------------------------------------- comparing


@dataclass(frozen=True)
class Verdict:
    """How a sink differs from the join."""

    rows: int
    lost: int
    doubled: int
    wrong: int
    #: versions of R that its batches were joined with, of all
    versions: int = 0

    @property
    def sound(self) -> bool:
        return not (self.lost or self.doubled or self.wrong)


def verify(spark: SparkSession, run: Run, name: str, versions: int) -> Verdict:
    """Compare the sink of a query with the join: every file was a batch, and so has one version of R."""
    _, how, sink = parts(name)
    if sink == OWN_SINK:
        rows = spark.read.parquet(run.table(name)).toArrow()
    else:
        rows = read_all(sink, run.table(name), run.path(name))
    masters = {version: run.master(version) for version in range(1, versions + 1)}
    stream, size = run.stream(run.files()), run.rows_per_file
    number = rows["seq"].to_numpy() // size
    lost = doubled = wrong = 0
    used, last = set(), run.files() - 1
    now = 1
    for file in range(run.files()):
        got = as_multiset(rows.filter(pa.array(number == file)))
        tuples = stream.slice(file * size, size)
        # What comes last was fed when R had its last version; no batch goes back behind the one before it.
        allowed = range(versions if file == last else now, versions + 1)
        least: tuple[int, int, int, int] | None = None
        for version in allowed:
            wanted = as_multiset(reference_join(tuples, masters[version], "k", how))
            strange = sum(count for row, count in got.items() if row not in wanted)
            missing, more = (wanted - got).total(), (got - wanted).total() - strange
            found = (missing + more + strange, missing, more, strange)
            least = found if least is None else min(least, found)
            if not found[0]:
                now = version
                used.add(version)
                break
        assert least is not None
        lost, doubled, wrong = lost + least[1], doubled + least[2], wrong + least[3]
    return Verdict(rows.num_rows, lost, doubled, wrong, len(used))


def table(lines: list[list[object]]) -> str:
    widths = [max(len(str(line[i])) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(str(cell).ljust(width) if i == 0 else str(cell).rjust(width) for i, (cell, width) in row)
        for row in (list(enumerate(zip(line, widths, strict=True))) for line in lines)
    )


def soak(combinations: list[list[str]], kills: int, seed: int) -> bool:
    """Whether all queries have ended with the rows of the join; prints the account."""
    lines: list[list[object]] = [
        ["combination", *(f"{kind}s" for kind in KINDS), "batches", "versions", "rows", "lost", "doubled", "wrong"]
    ]
    total: Counter[str] = Counter()
    failed = versions = 0
    verdicts = []
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="semistream-soak-") as folder:
        runs = []
        with cluster(Path(folder) / "cluster") as on:
            for number, joins in enumerate(combinations):
                run = Run(f"{folder}/run{number}", on.url, joins)
                run.prepare()
                account = Tormentor(run, on, seed + number).torment(deaths(kills, seed + number))
                runs.append((run, account))
                total += account.kills
                failed += account.failed
                versions += account.versions
                print(f"{', '.join(joins)}: {dict(account.kills)}, {time.monotonic() - start:.0f} s", flush=True)
        spark = open_session("verify", "local[2]", {"spark.driver.memory": "1g", "spark.log.level": "ERROR"})
        try:
            for run, account in runs:
                for name in run.joins:
                    found = verify(spark, run, name, account.versions)
                    verdicts.append(found)
                    cut = [account.by_query[name, kind] for kind in KINDS]
                    batches = run.committed()[name]
                    lines.append(
                        [name, *cut, batches, found.versions, found.rows, found.lost, found.doubled, found.wrong]
                    )
        finally:
            spark.stop()
    print("\nkills while a batch of the query was open:\n")
    print(table(lines))
    print(
        f"\n{total.total()} kills ({', '.join(f'{total[kind]} {kind}s' for kind in KINDS)}), {failed} ends with an "
        f"error, {versions} versions of R, {sum(found.rows for found in verdicts)} rows, "
        f"{sum(not found.sound for found in verdicts)} queries that differ; {time.monotonic() - start:.0f} s",
        flush=True,
    )
    return all(found.sound for found in verdicts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("combinations", nargs="*", help="such as ssbj-left")
    parser.add_argument("--kills", type=int, default=100, help="in each program (100)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sink", choices=[OWN_SINK, *FORMATS], default=OWN_SINK, help="what is written (spark)")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        arguments = json.loads(options.run)
        query(Run(**arguments["run"]), arguments["finish"])
        return
    chosen = [options.combinations] if options.combinations else COMBINATIONS
    if options.sink != OWN_SINK:
        chosen = [[f"{name}-{options.sink}" for name in names] for names in chosen]
    if not soak(chosen, options.kills, options.seed):
        sys.exit(1)


if __name__ == "__main__":
    main()
