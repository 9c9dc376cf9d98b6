"""A retailer's sales, joined with its products and customers as they arrive: by Spark's own join, and by semistream.

Spark generates the data and lays them out. Files of sales then arrive at the pace at which the sales happen, in bursts:
once for semistream, which loads them into a warehouse, and once for Spark's own join. The figures that matter are on
the screen meanwhile, side by side, and in a picture afterwards. In the end the loaded table is compared with Spark's
own batch join, row by row.

semistream goes first: whatever the JVM compiles and learns on the way is to the other's advantage.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from semistream.errors import ConfigError
from semistream.lab.contest.spark_runs import in_words, native_settings, tuned
from semistream.lab.demo.picture import page
from semistream.lab.demo.race import Account, Scales, watch
from semistream.lab.demo.warehouse import ENRICHMENTS, RetailWarehouse, delta_is_there
from semistream.lab.workloads.retail import Retail
from semistream.spark.session import running_session

#: Sales per second on average; bursts reach twice that.
RATE_PER_S = 150_000.0
STORES = 200
#: With this seed both long bursts and long lulls are in the first half minute.
SEED = 0
#: Master data take this many times the budget, unless that would leave no room to work in.
MASTER_TO_BUDGET = 5
LEAST_BUDGET_BYTES = 16 << 20
#: For so long after the last sale Spark's own join may go on.
PATIENCE_SECONDS = 10.0
OURS, THEIRS = "semistream", "Spark's own join"
PICTURE = "demo.html"

_SETTINGS = {
    **tuned(os.cpu_count() or 1),
    # More than enough for the dimension tables, and a laptop has it.
    "spark.driver.memory": "3g",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


def run(
    console: Console,
    notes: Console,
    *,
    rows: int,
    keep: Path | None = None,
    picture: Path | None = None,
    as_json: bool = False,
) -> bool:
    """Make, load twice, compare, draw; the summary goes to `console`, all before it to `notes`. True if all is right.

    The picture goes to the file `picture`, else into the folder `keep`, else into a file that stays in the system's
    temporary folder.
    """
    if rows < 1:
        raise ConfigError(f"--rows {rows}: the number of sales must be at least 1")
    with ExitStack() as stack:
        drawn = _picture_file(picture)
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="semistream-demo-")))
        folder = scratch if keep is None else _empty_folder(keep)
        steps = Steps(notes)
        settings = {**_SETTINGS, "spark.local.dir": str(scratch / "spark")}
        with steps.step("starting Spark"):
            spark = stack.enter_context(
                running_session("semistream demo", "local[*]", settings, lambda line: notes.print(line, markup=False))
            )
            # Only now is it known how many cores Spark has been given.
            spark.conf.set("spark.sql.shuffle.partitions", spark.sparkContext.defaultParallelism)
        warehouse = RetailWarehouse(spark, shop(rows), folder, table_format(notes))
        summary, sides = load(warehouse, rows, steps)
        kept = None if keep is None else warehouse.fact
        if drawn is None:
            drawn = folder / PICTURE if keep is not None else _new_file()
        drawn.write_text(_page(summary, sides, kept), encoding="utf-8")
    report(console, notes, summary, kept, drawn, as_json)
    return not summary.differences


def table_format(notes: Console) -> str:
    """Delta where its library is installed, else Parquet, which is then said."""
    if delta_is_there():
        return "delta"
    said = "deltalake is not installed: the table will be Parquet; pip install 'semistream[delta]'"
    notes.print(said, markup=False, highlight=False, soft_wrap=True)
    return "parquet"


def shop(rows: int) -> Retail:
    """A retailer with so many customers and products that neither is met by every sale, nor each by one only."""
    return Retail(max(2 * rows // 3, 1), max(4 * rows // 3, 1), STORES, SEED, RATE_PER_S)


def _empty_folder(path: Path) -> Path:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"--keep {path} is not empty; name a folder that is empty or not there yet")
    path.mkdir(parents=True, exist_ok=True)
    return path.resolve()


def _picture_file(path: Path | None) -> Path | None:
    """A place for the picture that can be written to, found out before two minutes have passed."""
    if path is None:
        return None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--picture {path} cannot be written ({error.strerror}); name a file that can") from error
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"--picture {path} is a folder, or cannot be written; name a file that can")
    return path.resolve()


def _new_file() -> Path:
    number, path = tempfile.mkstemp(prefix="semistream-demo-", suffix=".html")
    os.close(number)
    return Path(path)


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
class Side:
    """How one of the two queries went; `lag_rows` is what was left when it was stopped."""

    how: str
    settings: str
    rows_in: int
    #: of them, loaded when the last sale arrived
    loaded_in_time: int
    batches: int
    service_rate_per_s: int
    most_lag_rows: int
    lag_rows: int
    most_memory_bytes: int

    @staticmethod
    def of(account: Account) -> Side:
        return Side(
            account.how,
            account.settings,
            account.rows_in,
            account.loaded_in_time,
            account.batches,
            account.service_rate_per_s,
            account.most_lag_rows,
            account.lag_rows,
            account.most_memory_bytes,
        )


@dataclass(frozen=True)
class Summary:
    """How it went."""

    products: int
    customers: int
    sales_seconds: float
    cores: int
    table_format: str
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
    #: how each query went, by its name
    sides: dict[str, Side]


def load(warehouse: RetailWarehouse, rows: int, steps: Steps, pace: float = 1.0) -> tuple[Summary, list[Account]]:
    """All steps in a Spark session that is there; `pace` is how many seconds one second of sales takes."""
    sold = warehouse.shop
    with steps.step(f"making {sold.n_products:,} products, {sold.n_customers:,} customers, {sold.n_stores} stores"):
        warehouse.make_dimensions()
    with steps.step("laying products and customers out as page stores"):
        master_bytes = warehouse.lay_out()
    with steps.step(f"making {rows:,} sales"):
        files = warehouse.make_sales(rows)
    budget = max(master_bytes // MASTER_TO_BUDGET, LEAST_BUDGET_BYTES)
    ours, theirs = Account(OURS, rows, budget), Account(THEIRS, rows)
    spark = native_settings(warehouse.spark)
    ours.settings = in_words({"master": spark["master"], "memory": _mb(budget), "sink": warehouse.format})
    theirs.settings = in_words({**spark, "sink": "parquet"})
    scales, screen = Scales(warehouse.spark), Screen(steps.notes, (theirs, ours))
    tasks = warehouse.tasks
    with steps.step(f"loading fact_sales with {OURS}", spin=False), screen.shown(ours) as show:
        scales.clear()
        query = warehouse.start(budget)
        watch(query, files, ours, scales, tasks=tasks, pace=pace, show=show)
    with steps.step(f"the same sales through {THEIRS}", spin=False), screen.shown(theirs) as show:
        scales.clear()
        query = warehouse.start_spark()
        watch(query, files, theirs, scales, tasks=tasks, pace=pace, patience=PATIENCE_SECONDS, show=show)
    warehouse.clean_up()
    with steps.step("comparing fact_sales with Spark's own batch join"):
        differences = warehouse.differences()
    summary = Summary(
        products=sold.n_products,
        customers=sold.n_customers,
        sales_seconds=files[-1].at,
        cores=tasks,
        table_format=warehouse.format,
        master_bytes=master_bytes,
        budget_bytes=budget,
        peak_bytes=ours.peak_bytes,
        workers_resident_peak_bytes=ours.workers_peak_bytes,
        rows_in=ours.rows_in,
        rows_out=ours.rows_out,
        batches=ours.batches,
        service_rate_per_s=ours.service_rate_per_s,
        most_lag_rows=ours.most_lag_rows,
        hit_rate={name: round(ours.hit_rate(name), 4) for name in ENRICHMENTS},
        unmatched=ours.unmatched,
        differences=differences,
        seconds=steps.seconds,
        sides={account.name: Side.of(account) for account in (theirs, ours)},
    )
    return summary, [theirs, ours]


class Screen:
    """Both queries side by side on a terminal; a line per micro-batch elsewhere."""

    def __init__(self, notes: Console, accounts: tuple[Account, ...]) -> None:
        self._notes = notes
        self._accounts = accounts

    @contextmanager
    def shown(self, account: Account) -> Iterator[Callable[[bool], None]]:
        """Show how things stand while a query runs."""
        if not self._notes.is_terminal:
            yield lambda ended: self._notes.print(_line(account)) if ended else None
            return
        with Live(_view(self._accounts), console=self._notes, auto_refresh=False) as live:
            yield lambda _: live.update(_view(self._accounts), refresh=True)


def _line(account: Account) -> str:
    parts = [f"{account.name}, batch {account.batches}", f"{account.rows_in:,} rows"]
    parts.append(f"{account.rate_per_s:,.0f} rows/s")
    memory = f"memory {_mb(account.memory_bytes)}"
    if account.budget_bytes is not None:
        parts.append("hit rate " + ", ".join(f"{name} {account.hit_rate(name):.1%}" for name in ENRICHMENTS))
        memory += f", cache {_mb(account.held_bytes)} of {_mb(account.budget_bytes)}"
    return " | ".join([*parts, memory, f"lag {account.lag_rows:,} rows"])


def _view(accounts: tuple[Account, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, highlight=False)
    table.add_column("")
    for account in accounts:
        table.add_column(account.name, justify="right", min_width=24)
    for name, values in _figures(accounts).items():
        table.add_row(name, *values)
    return table


def _figures(accounts: tuple[Account, ...]) -> dict[str, list[str]]:
    """What both have in common, as it stands."""
    found: dict[str, list[str]] = {
        "arrived": [f"{account.rows_arrived:,} of {account.rows:,}" for account in accounts],
        "loaded": [f"{account.rows_in:,}" for account in accounts],
        "rows/s, last batch": [f"{account.rate_per_s:,.0f}" for account in accounts],
        "lag": [f"{account.lag_rows:,} rows" for account in accounts],
        "lag at most": [f"{account.most_lag_rows:,} rows" for account in accounts],
        "memory": [_mb(account.memory_bytes) for account in accounts],
        "memory at most": [_mb(account.most_memory_bytes) for account in accounts],
        "batches": [f"{account.batches}" for account in accounts],
    }
    return {
        name: [value if account.samples else "" for value, account in zip(values, accounts, strict=True)]
        for name, values in found.items()
    }


def _mb(size: float) -> str:
    return f"{size / 1e6:,.1f} MB"


def _page(summary: Summary, accounts: list[Account], kept: Path | None) -> str:
    """The picture."""
    sides = [("theirs", accounts[0]), ("ours", accounts[1])]
    master = f"{summary.products:,} products and {summary.customers:,} customers ({_mb(summary.master_bytes)})"
    lead = (
        f"{summary.rows_in:,} sales arrive within {summary.sales_seconds:.1f} s and are joined with {master}, on "
        f"{summary.cores} cores. Each query has the machine to itself."
    )
    facts = {
        "rows per second while a batch ran": [f"{account.service_rate_per_s:,}" for account in accounts],
        "loaded when the last sale arrived": [f"{account.loaded_in_time:,} rows" for account in accounts],
        "lag at most": [f"{account.most_lag_rows:,} rows" for account in accounts],
        "lag at the end": [f"{account.lag_rows:,} rows" for account in accounts],
        "memory at most": [_mb(account.most_memory_bytes) for account in accounts],
        "how": [account.how for account in accounts],
        "settings": [account.settings for account in accounts],
    }
    where = f" The table is {kept}." if kept is not None else ""
    end = (
        f"{_result(summary)} Spark {version('pyspark')}. Memory is what the JVM and the Python workers that join hold. "
        f"Spark's own join is stopped {PATIENCE_SECONDS:.0f} seconds after the last sale.{where}"
    )
    return page("The same sales through Spark's own join and through semistream", lead, sides, facts, end)


def _result(summary: Summary) -> str:
    table = f"The {summary.table_format.capitalize()} table that {OURS} has written"
    if summary.differences:
        return f"{table} differs from Spark's own batch join in {summary.differences:,} rows."
    return f"{table} has exactly the rows of Spark's own batch join."


def report(console: Console, notes: Console, summary: Summary, kept: Path | None, picture: Path, as_json: bool) -> None:
    """The figures of a run on `console`; what is wrong with it, if anything, on `notes`."""
    if as_json:
        summary_json = {
            **asdict(summary),
            "verified": not summary.differences,
            "table": None if kept is None else str(kept),
            "picture": str(picture),
        }
        console.out(json.dumps(summary_json), highlight=False)
    else:
        console.print(_sides(summary))
        console.print(_table(summary))
        where = kept or "removed with the temporary folder; --keep DIR keeps it"
        console.print(f"{summary.table_format} table: {where}", soft_wrap=True, highlight=False, markup=False)
        console.print(f"picture: {picture}", soft_wrap=True, highlight=False, markup=False)
    if summary.differences:
        notes.print(
            f"wrong: fact_sales and Spark's own batch join of the same sales differ in {summary.differences:,} rows",
            style="bold red",
        )


def _sides(summary: Summary) -> Table:
    table = Table("", *summary.sides, box=box.SIMPLE_HEAD, pad_edge=False, highlight=False)
    sides = list(summary.sides.values())
    table.add_row("rows/s while a batch ran", *(f"{side.service_rate_per_s:,}" for side in sides))
    table.add_row("loaded", *(f"{side.rows_in:,} sales in {side.batches} batches" for side in sides))
    table.add_row("loaded when the last arrived", *(f"{side.loaded_in_time:,}" for side in sides))
    table.add_row("lag at most", *(f"{side.most_lag_rows:,} rows" for side in sides))
    table.add_row("lag at the end", *(f"{side.lag_rows:,} rows" for side in sides))
    table.add_row("memory at most", *(_mb(side.most_memory_bytes) for side in sides))
    table.add_row("settings", *(side.settings for side in sides))
    return table


def _table(summary: Summary) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=False, highlight=False)
    for name, value in {
        "rows out": f"{summary.rows_out:,} for {summary.rows_in:,} sales",
        "unmatched": ", ".join(f"{count:,} {name}" for name, count in summary.unmatched.items()),
        "hit rate": ", ".join(f"{name} {rate:.1%}" for name, rate in summary.hit_rate.items()),
        "cache": f"{_mb(summary.peak_bytes)} at most, of a budget of {_mb(summary.budget_bytes)}, "
        f"for {_mb(summary.master_bytes)} of master data",
        "Python workers": f"{_mb(summary.workers_resident_peak_bytes)} resident at most",
        "seconds": f"{sum(summary.seconds.values()):.1f}",
        "result": "[green]exactly the rows of Spark's own batch join[/]"
        if not summary.differences
        else f"[red]{summary.differences:,} rows differ from Spark's own batch join[/]",
    }.items():
        table.add_row(name, value)
    return table
