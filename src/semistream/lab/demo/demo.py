"""A retailer's sales, enriched as they arrive and loaded into a warehouse, with the figures that matter on the screen.

Spark generates the data and lays them out; files of sales then arrive at the pace at which the sales happen, in
bursts. In the end the loaded table is compared with Spark's own batch join, row by row.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich import box
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from semistream.errors import ConfigError
from semistream.lab.demo.warehouse import ENRICHMENTS, Batch, Load, RetailWarehouse, SalesFile
from semistream.lab.measure.resident import proportional_bytes, spark_workers
from semistream.lab.workloads.retail import Retail
from semistream.spark.session import running_session

#: Sales per second on average; bursts reach twice that.
RATE_PER_S = 40_000.0
STORES = 200
#: With this seed both long bursts and long lulls are in the first half minute.
SEED = 0
#: Master data take this many times the budget, unless that would leave no room to work in.
MASTER_TO_BUDGET = 3
LEAST_BUDGET_BYTES = 16 << 20
LOOK_SECONDS = 0.25

# The JVM's second compiler pays after some minutes, and the demonstration does not last that long.
_SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.shuffle.partitions": "4",
}


def run(console: Console, notes: Console, *, rows: int, keep: Path | None = None, as_json: bool = False) -> bool:
    """Make, load, compare; the summary goes to `console`, all before it to `notes`. True if the load is right."""
    if rows < 1:
        raise ConfigError(f"--rows {rows}: the number of sales must be at least 1")
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="semistream-demo-")))
        folder = scratch if keep is None else _empty_folder(keep)
        steps = Steps(notes)
        settings = {**_SETTINGS, "spark.local.dir": str(scratch / "spark")}
        with steps.step("starting Spark"):
            spark = stack.enter_context(
                running_session("semistream demo", "local[*]", settings, lambda line: notes.print(line, markup=False))
            )
        warehouse = RetailWarehouse(spark, shop(rows), folder)
        summary = load(warehouse, rows, steps)
    report(console, notes, summary, None if keep is None else warehouse.path, as_json)
    return not summary.differences


def shop(rows: int) -> Retail:
    """A retailer with so many customers and products that neither is met by every sale, nor each by one only."""
    return Retail(max(rows // 5, 1), max(2 * rows // 5, 1), STORES, SEED, RATE_PER_S)


def _empty_folder(path: Path) -> Path:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"--keep {path} is not empty; name a folder that is empty or not there yet")
    path.mkdir(parents=True, exist_ok=True)
    return path.resolve()


class Steps:
    """Says what is going on, and how long it took."""

    def __init__(self, notes: Console) -> None:
        self.notes = notes
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str, spin: bool = True) -> Iterator[None]:
        began = time.perf_counter()
        with self.notes.status(name) if spin and self.notes.is_terminal else nullcontext():
            yield
        self.seconds[name] = round(time.perf_counter() - began, 1)
        self.notes.print(f"{name}: {self.seconds[name]:.1f} s")


@dataclass(frozen=True)
class Summary:
    """How it went."""

    products: int
    customers: int
    master_bytes: int
    budget_bytes: int
    peak_bytes: int
    workers_resident_peak_bytes: int
    rows_in: int
    rows_out: int
    batches: int
    service_rate_per_s: int
    most_lag_rows: int
    hit_rate: dict[str, float]
    unmatched: dict[str, int]
    differences: int
    seconds: dict[str, float]


def load(warehouse: RetailWarehouse, rows: int, steps: Steps, pace: float = 1.0) -> Summary:
    """All steps in a Spark session that is there; `pace` is how many seconds one second of sales takes."""
    sold = warehouse.shop
    with steps.step(f"making {sold.n_products:,} products, {sold.n_customers:,} customers, {sold.n_stores} stores"):
        warehouse.make_dimensions()
    with steps.step("laying products and customers out as page stores"):
        master_bytes = warehouse.lay_out()
    with steps.step(f"making {rows:,} sales"):
        files = warehouse.make_sales(rows)
    account = Account(rows, max(master_bytes // MASTER_TO_BUDGET, LEAST_BUDGET_BYTES))
    with steps.step("loading fact_sales", spin=False):
        watch(warehouse, files, account, steps.notes, pace)
    with steps.step("comparing with Spark's own batch join"):
        differences = warehouse.differences()
    return Summary(
        products=sold.n_products,
        customers=sold.n_customers,
        master_bytes=master_bytes,
        budget_bytes=account.budget_bytes,
        peak_bytes=account.peak_bytes,
        workers_resident_peak_bytes=account.workers_peak_bytes,
        rows_in=account.rows_in,
        rows_out=account.rows_out,
        batches=account.batches,
        service_rate_per_s=round(account.rows_in / account.busy_s),
        most_lag_rows=account.most_lag_rows,
        hit_rate={name: round(account.hit_rate(name), 4) for name in ENRICHMENTS},
        unmatched=account.unmatched,
        differences=differences,
        seconds=steps.seconds,
    )


@dataclass
class Account:
    """What the load has done so far."""

    rows: int
    budget_bytes: int
    rows_arrived: int = 0
    rows_in: int = 0
    rows_out: int = 0
    batches: int = 0
    busy_s: float = 0.0
    rate_per_s: float = 0.0
    hits: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENRICHMENTS, 0))
    misses: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENRICHMENTS, 0))
    unmatched: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENRICHMENTS, 0))
    private_bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENRICHMENTS, 0))
    held_bytes: int = 0
    peak_bytes: int = 0
    workers_bytes: int = 0
    workers_peak_bytes: int = 0
    most_lag_rows: int = 0

    @property
    def lag_rows(self) -> int:
        """Sales that have arrived and are not loaded yet."""
        return max(self.rows_arrived - self.rows_in, 0)

    def hit_rate(self, name: str) -> float:
        return self.hits[name] / max(self.hits[name] + self.misses[name], 1)

    def add(self, batch: Batch) -> None:
        """Take a finished micro-batch into account."""
        self.batches += 1
        self.rows_in += batch.rows
        self.busy_s += batch.seconds
        self.rate_per_s = batch.rows / batch.seconds
        for name, values in batch.values.items():
            self.hits[name] += int(values["hits"])
            self.misses[name] += int(values["misses"])
            self.unmatched[name] += int(values["unmatched"])
            self.private_bytes[name] = max(self.private_bytes[name], int(values["peak_bytes"]))
        self.rows_out += int(batch.values[list(ENRICHMENTS)[-1]]["rows_out"])

    def look(self, shared_bytes: int, tasks: int, workers_bytes: int) -> None:
        """Take a look at the memory into account: shared caches, and what each task has at most beside them."""
        self.held_bytes = shared_bytes + tasks * sum(self.private_bytes.values())
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        self.workers_bytes = workers_bytes
        self.workers_peak_bytes = max(self.workers_peak_bytes, workers_bytes)
        self.most_lag_rows = max(self.most_lag_rows, self.lag_rows)


def watch(
    warehouse: RetailWarehouse, files: Sequence[SalesFile], account: Account, notes: Console, pace: float
) -> None:
    """Start the query, let the files arrive, and show how it goes until everything is loaded."""
    query = warehouse.start(account.budget_bytes)
    over = threading.Event()

    def deliver() -> None:
        began = time.monotonic()
        for file in files:
            if over.wait(max(began + file.at * pace - time.monotonic(), 0)):
                return
            warehouse.arrive(file)
            account.rows_arrived += file.rows
        warehouse.all_arrived()
        query.finish()

    live = Live(_view(account), console=notes, auto_refresh=False) if notes.is_terminal else None
    with live or nullcontext(), ThreadPoolExecutor(1) as background:
        try:
            delivery = background.submit(deliver)
            while not delivery.done() and query.active:
                wait_for([delivery], LOOK_SECONDS)
                _look(query, account, warehouse.tasks, live, notes)
            over.set()
            delivery.result()
            query.finish()
            _look(query, account, warehouse.tasks, live, notes)
        finally:
            over.set()
            query.stop()


def _look(query: Load, account: Account, tasks: int, live: Live | None, notes: Console) -> None:
    account.look(query.shared_bytes(), tasks, workers_resident_bytes())
    for batch in query.batches():
        account.add(batch)
        if live is None:
            notes.print(_line(account))
    if live is not None:
        live.update(_view(account), refresh=True)


def _line(account: Account) -> str:
    return (
        f"batch {account.batches} | {account.rows_in:,} rows | {account.rate_per_s:,.0f} rows/s | hit rate "
        + ", ".join(f"{name} {account.hit_rate(name):.1%}" for name in ENRICHMENTS)
        + f" | memory {_mb(account.held_bytes)} of {_mb(account.budget_bytes)}, workers {_mb(account.workers_bytes)}"
        + f" | lag {account.lag_rows:,} rows"
    )


def _view(account: Account) -> Table:
    grid = Table.grid(padding=(0, 2))
    for name, rows in (("arrived", account.rows_arrived), ("loaded", account.rows_in)):
        grid.add_row(name, ProgressBar(account.rows, rows, width=40, finished_style="green"), f"{rows:,} sales")
    grid.add_row("lag", f"{account.lag_rows:,} rows", f"at most {account.most_lag_rows:,}")
    grid.add_row("rate", f"{account.rate_per_s:,.0f} rows/s", f"batch {account.batches}")
    grid.add_row("hit rate", *(f"{name} {account.hit_rate(name):.1%}" for name in ENRICHMENTS))
    grid.add_row(
        "memory",
        f"{_mb(account.held_bytes)} of {_mb(account.budget_bytes)} budget",
        f"Python workers {_mb(account.workers_bytes)}",
    )
    return grid


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


def workers_resident_bytes() -> int:
    """Memory of Spark's Python workers below this process; a page shared by several counts once."""
    return sum(proportional_bytes(pid, files=True) for pid in spark_workers())


def report(console: Console, notes: Console, summary: Summary, kept: Path | None, as_json: bool) -> None:
    """The figures of a run on `console`; what is wrong with it, if anything, on `notes`."""
    if as_json:
        summary_json = {
            **asdict(summary),
            "verified": not summary.differences,
            "warehouse": None if kept is None else str(kept),
        }
        console.out(json.dumps(summary_json), highlight=False)
    else:
        console.print(_table(summary))
        where = kept or "removed with the temporary folder; --keep DIR keeps it"
        console.print(f"warehouse: {where}", soft_wrap=True, highlight=False, markup=False)
    if summary.differences:
        notes.print(
            f"wrong: fact_sales and Spark's own batch join of the same sales differ in {summary.differences:,} rows",
            style="bold red",
        )


def _table(summary: Summary) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=False, highlight=False)
    for name, value in {
        "rows in": f"{summary.rows_in:,} sales in {summary.batches} batches",
        "rows out": f"{summary.rows_out:,}",
        "unmatched": ", ".join(f"{count:,} {name}" for name, count in summary.unmatched.items()),
        "service rate": f"{summary.service_rate_per_s:,} rows/s while a batch ran",
        "lag": f"{summary.most_lag_rows:,} rows at most",
        "hit rate": ", ".join(f"{name} {rate:.1%}" for name, rate in summary.hit_rate.items()),
        "memory": f"{_mb(summary.peak_bytes)} at most, of a budget of {_mb(summary.budget_bytes)}, "
        f"for {_mb(summary.master_bytes)} of master data",
        "Python workers": f"{_mb(summary.workers_resident_peak_bytes)} resident at most",
        "seconds": f"{sum(summary.seconds.values()):.1f}",
        "result": "[green]exactly the rows of Spark's own batch join[/]"
        if not summary.differences
        else f"[red]{summary.differences:,} rows differ from Spark's own batch join[/]",
    }.items():
        table.add_row(name, value)
    return table
