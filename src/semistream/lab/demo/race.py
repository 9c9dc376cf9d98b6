"""The same sales at the same pace through two queries, one after the other, and what each has done by when.

A query has the machine to itself while it runs, so that neither slows the other down. Both take whatever has arrived
when a micro-batch begins. Memory is that of the JVM and, where Python workers join, of these with their shared caches;
the JVM gives back what it does not use before each query, for it would count as the next one's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from semistream.lab.demo.warehouse import ENRICHMENTS, Batch, Load, SalesFile
from semistream.lab.measure.resident import proportional_bytes, resident_bytes, spark_workers

LOOK_SECONDS = 0.25


@dataclass(frozen=True)
class Sample:
    """How things stood `at` so many seconds after the first sale; `memory_bytes` is what the processes held."""

    at: float
    arrived: int
    loaded: int
    rate_per_s: float
    memory_bytes: int

    @property
    def lag(self) -> int:
        """Sales that have arrived and are not loaded yet."""
        return max(self.arrived - self.loaded, 0)


def _none_yet() -> dict[str, int]:
    return dict.fromkeys(ENRICHMENTS, 0)


@dataclass
class Account:
    """What a query has done so far; it is to load so many `rows`."""

    name: str
    rows: int
    #: what an enrichment may hold; None where there is no limit
    budget_bytes: int | None = None
    #: how the query works, in words
    how: str = ""
    settings: str = ""
    rows_arrived: int = 0
    rows_in: int = 0
    rows_out: int = 0
    batches: int = 0
    busy_s: float = 0.0
    rate_per_s: float = 0.0
    hits: dict[str, int] = field(default_factory=_none_yet)
    misses: dict[str, int] = field(default_factory=_none_yet)
    unmatched: dict[str, int] = field(default_factory=_none_yet)
    private_bytes: dict[str, int] = field(default_factory=_none_yet)
    #: of the budget: shared caches and what tasks have at most beside them
    held_bytes: int = 0
    peak_bytes: int = 0
    workers_peak_bytes: int = 0
    samples: list[Sample] = field(default_factory=list)

    @property
    def lag_rows(self) -> int:
        """Sales that have arrived and are not loaded yet."""
        return max(self.rows_arrived - self.rows_in, 0)

    @property
    def most_lag_rows(self) -> int:
        return max((sample.lag for sample in self.samples), default=0)

    @property
    def loaded_in_time(self) -> int:
        """Sales that were loaded when the last one arrived."""
        everything = max((sample.arrived for sample in self.samples), default=0)
        return next((sample.loaded for sample in self.samples if sample.arrived == everything), 0)

    @property
    def memory_bytes(self) -> int:
        """What the processes hold now."""
        return self.samples[-1].memory_bytes if self.samples else 0

    @property
    def most_memory_bytes(self) -> int:
        return max((sample.memory_bytes for sample in self.samples), default=0)

    @property
    def service_rate_per_s(self) -> int:
        """Rows per second while a batch ran."""
        return round(self.rows_in / self.busy_s) if self.busy_s else 0

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
        if batch.values:
            self.rows_out += int(batch.values[list(ENRICHMENTS)[-1]]["rows_out"])

    def look(self, at: float, shared_bytes: int, tasks: int, workers_bytes: int, java_bytes: int) -> None:
        """Take a look at the memory into account: caches that workers share, the workers' own, and the JVM's."""
        self.held_bytes = shared_bytes + tasks * sum(self.private_bytes.values())
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        self.workers_peak_bytes = max(self.workers_peak_bytes, workers_bytes)
        memory = java_bytes + workers_bytes + shared_bytes
        self.samples.append(Sample(at, self.rows_arrived, self.rows_in, self.rate_per_s, memory))


class Scales:
    """Memory of the processes of a local Spark: its JVM, and the Python workers where they have a part in a query."""

    def __init__(self, spark: Any) -> None:
        self._java = spark.sparkContext._jvm.java.lang
        self._pid = int(self._java.ProcessHandle.current().pid())

    def clear(self) -> None:
        """Let the JVM give back what it does not use."""
        self._java.System.gc()

    def weigh(self, workers: bool) -> tuple[int, int]:
        """Bytes of the Python workers, if they count, and of the JVM."""
        held = sum(proportional_bytes(pid) for pid in spark_workers()) if workers else 0
        return held, resident_bytes(self._pid)


def watch(
    query: Load,
    files: Sequence[SalesFile],
    account: Account,
    scales: Scales,
    *,
    tasks: int,
    pace: float = 1.0,
    patience: float | None = None,
    show: Callable[[bool], None] = lambda _: None,
) -> None:
    """Let the files arrive, and keep account until everything is loaded; `show` is told whether a batch has ended.

    `pace` is how many seconds one second of sales takes. With `patience` the query is left so many seconds after the
    last sale, and is then stopped wherever it is.
    """
    over = threading.Event()
    began = time.monotonic()
    last = began + (files[-1].at if files else 0.0) * pace
    until = float("inf") if patience is None else last + patience

    def deliver() -> None:
        for file in files:
            if over.wait(max(began + file.at * pace - time.monotonic(), 0)):
                return
            query.arrive(file)
            account.rows_arrived += file.rows

    def look() -> None:
        shared = query.shared_bytes()
        workers, java = scales.weigh(query.has_workers)
        ended = False
        for batch in query.batches():
            account.add(batch)
            ended = True
            show(True)
        account.look(time.monotonic() - began, shared, tasks, workers, java)
        if not ended:
            show(False)

    account.how = query.how
    with ThreadPoolExecutor(1) as background:
        try:
            delivery = background.submit(deliver)
            while query.active and time.monotonic() < until and not (delivery.done() and not account.lag_rows):
                time.sleep(LOOK_SECONDS)
                look()
            over.set()
            delivery.result()
            if patience is None or not query.active:
                query.finish()
                look()
        finally:
            over.set()
            query.stop()
