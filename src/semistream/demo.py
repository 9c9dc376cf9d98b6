"""The embedded join at work on generated data, every result compared with a plain join.

The shortest proof that an installation works, and a first impression of how the operators differ: all join
the same stream with the same master data inside a tenth of its size.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from semistream.master.build import build_pages
from semistream.operators.registry import open_join
from semistream.workloads.relation import (
    KEY,
    MASTER_ROW_BYTES,
    MASTER_SCHEMA,
    master_batches,
    master_table,
    stream_batches,
)

ALGORITHMS = ("meshjoin", "ssj", "ssbj", "hybridjoin", "cachejoin", "opcachejoin", "sweepjoin")
BATCH_ROWS = 100_000
SEED = 20
#: A budget below this leaves a small demonstration no room to work in.
LEAST_BUDGET_BYTES = 8 << 20


@dataclass(frozen=True)
class Outcome:
    """One line of the closing table."""

    algorithm: str
    rows_in: int
    rows_out: int
    service_rate_per_s: float
    hit_rate: float
    peak_bytes: int
    right: bool


def run(console: Console, progress_console: Console, rows: int, stream_rows: int) -> bool:
    """Join with every operator in ALGORITHMS; true if each result is the plain join's."""
    budget = max(rows * MASTER_ROW_BYTES // 10, LEAST_BUDGET_BYTES)
    console.print(
        f"R: {rows:,} tuples of {MASTER_ROW_BYTES} bytes, keys drawn with repetition\n"
        f"S: {stream_rows:,} tuples of 20 bytes, Zipf exponent 1, hot keys scattered; "
        f"batches of {BATCH_ROWS:,}; budget {budget:,} bytes"
    )
    columns = (TextColumn("{task.description:<34}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with (
        tempfile.TemporaryDirectory(prefix="semistream-demo-") as folder,
        Progress(*columns, TimeElapsedColumn(), console=progress_console) as progress,
    ):
        task = progress.add_task("making the data", total=None)
        batches = list(stream_batches(stream_rows, rows, 1.0, SEED, batch_rows=BATCH_ROWS))
        store = Path(folder) / "master"
        master = pa.RecordBatchReader.from_batches(MASTER_SCHEMA, master_batches(rows, SEED, repeat=True))
        build_pages(master, store, on=KEY)
        progress.update(task, description="the plain join to compare with")
        expected = _sorted(
            pa.Table.from_batches(batches).join(master_table(rows, SEED, repeat=True), KEY, join_type="inner")
        )
        progress.update(task, description="data and plain join", total=1, completed=1)
        outcomes = [_join(name, batches, store, budget, expected, progress) for name in ALGORITHMS]
    console.print(_table(outcomes))
    wrong = [outcome.algorithm for outcome in outcomes if not outcome.right]
    if wrong:
        console.print(f"[bold red]wrong result:[/] {', '.join(wrong)}")
    else:
        console.print(f"every result is the plain join's {expected.num_rows:,} rows, compared column by column")
    return not wrong


def _join(
    name: str, batches: list[pa.RecordBatch], store: Path, budget: int, expected: pa.Table, progress: Progress
) -> Outcome:
    task = progress.add_task(name, total=sum(batch.num_rows for batch in batches))
    joined: list[pa.RecordBatch] = []
    with open_join(name, master=store, on=KEY, memory=budget, stream_schema=batches[0].schema) as operator:
        started = time.perf_counter()
        for batch in batches:
            joined.extend(operator.push(batch))
            progress.advance(task, batch.num_rows)
        joined.extend(operator.drain())
        seconds = time.perf_counter() - started
        stats, memory = operator.stats, operator.memory
        result = pa.Table.from_batches(joined, operator.output_schema)
    progress.update(task, description=f"{name}: checking")
    joined.clear()
    right = _sorted(result).cast(expected.schema).equals(expected)
    progress.update(task, description=name)
    rate = stats.tuples_in / seconds
    return Outcome(name, stats.tuples_in, stats.rows_out, rate, stats.hit_rate, memory.peak_bytes, right)


def _sorted(table: pa.Table) -> pa.Table:
    """One form for every order of the same rows: sorted by all columns, so equality is that of multisets."""
    order = pc.sort_indices(
        table, sort_keys=[(name, "ascending") for name in dict.fromkeys(["seq", *table.column_names])]
    )
    return table.take(order).combine_chunks()


def _table(outcomes: list[Outcome]) -> Table:
    # Least widths, so that headings wrap on a narrow terminal and figures do not.
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("algorithm", min_width=11)
    widths = {
        "rows in": 9,
        "rows out": 9,
        "service rate /s": 9,
        "cache hits": 6,
        "peak bytes": 11,
        "result": 6,
    }
    for heading, width in widths.items():
        table.add_column(heading, justify="right", min_width=width)
    for outcome in outcomes:
        table.add_row(
            outcome.algorithm,
            f"{outcome.rows_in:,}",
            f"{outcome.rows_out:,}",
            f"{outcome.service_rate_per_s:,.0f}",
            f"{outcome.hit_rate:.1%}",
            f"{outcome.peak_bytes:,}",
            "[green]right[/]" if outcome.right else "[red]wrong[/]",
        )
    return table
