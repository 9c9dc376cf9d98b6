"""Customer and Orders of TPC-H, made once by `tpchgen-cli` and kept as Parquet.

A benchmark that nobody here designed: every order names a customer, a third of the customers never orders, and
the orders are spread evenly over the others. The tool comes with the extra `workloads`.

Real customers are not alike. `busy_customers` says who orders when some order far more than others: the benchmark's
rows with another customer in each order, as benchmarks that add skew to TPC-H do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from semistream.errors import ConfigError, SemiStreamError, StoreError
from semistream.lab.workloads.zipf import zipf_keys

TOOL = "tpchgen-cli"
#: Order column to customer column, as `open_join` and `enrich` take it.
ON = {"o_custkey": "c_custkey"}
_TABLES = ("customer", "orders")
_CUSTOMERS_PER_SCALE = 150_000
_ORDERS_PER_CUSTOMER = 10


@dataclass(frozen=True)
class Tpch:
    """Where the two tables are: customer is R, orders is S."""

    folder: Path
    scale_factor: float

    @property
    def customer(self) -> Path:
        return self.folder / "customer.parquet"

    @property
    def orders(self) -> Path:
        return self.folder / "orders.parquet"

    @property
    def customers_count(self) -> int:
        """What the benchmark's rules say, not what the files hold."""
        return int(_CUSTOMERS_PER_SCALE * self.scale_factor)

    @property
    def orders_count(self) -> int:
        return self.customers_count * _ORDERS_PER_CUSTOMER


def busy_customers(n_customers: int, exponent: float, seed: int, start: int, count: int) -> np.ndarray:
    """Customers of the orders number start .. start + count - 1, by Zipf's law: a few of them order most.

    As by the benchmark's rules a customer whose number is divisible by three has no order. Which of the others order
    most is scattered over them by the seed. Any slice can be made by itself.

    >>> busy_customers(9, 1.0, seed=1, start=0, count=1000).max()
    np.int64(8)
    """
    ordering = n_customers - n_customers // 3
    if ordering < 1:
        raise ConfigError(f"n_customers={n_customers}; allowed are whole numbers from 1")
    number = zipf_keys(ordering, exponent, seed, start, count)
    return np.asarray(number // 2 * 3 + number % 2 + 1)


def tpch(cache: str | Path, scale_factor: float) -> Tpch:
    """The tables of that scale in the cache folder; made if they are not there yet.

    They appear under their name when they are complete, so a run that was broken off leaves nothing that could
    be taken for data. The papers use scale 100: 15 million customers, 150 million orders, about 20 GB.
    """
    if not 0.001 <= scale_factor <= 1000:
        raise ConfigError(f"scale_factor={scale_factor}; allowed is 0.001 to 1000")
    tables = Tpch(Path(cache) / f"tpch-sf{scale_factor:g}", scale_factor)
    if tables.folder.is_dir():
        return _complete(tables)
    tool = _find_tool()
    tables.folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{tables.folder.name}-", dir=tables.folder.parent))
    # The scratch folder is for this user alone; what stays is as readable as anything else here.
    made = scratch / "tables"
    made.mkdir()
    try:
        command = [tool, "parquet", f"--scale-factor={scale_factor:g}", f"--tables={','.join(_TABLES)}"]
        done = subprocess.run(
            [*command, f"--output-dir={made}", "--no-progress", "--quiet"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise SemiStreamError(f"{TOOL} ended with status {done.returncode}: {done.stdout.strip()[-2000:]}")
        _publish(made, tables.folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return _complete(tables)


def _complete(tables: Tpch) -> Tpch:
    missing = [path.name for path in (tables.customer, tables.orders) if not path.is_file()]
    if missing:
        raise StoreError(f"{tables.folder} lacks {' and '.join(missing)}; remove the folder, and it is made anew")
    return tables


def _publish(made: Path, folder: Path) -> None:
    try:
        os.rename(made, folder)
    except OSError:
        # Somebody else finished the same tables first: theirs are as good.
        if not folder.is_dir():
            raise


def _find_tool() -> str:
    """The tool beside this Python, which need not be on the path, else wherever the path leads."""
    beside = shutil.which(TOOL, path=str(Path(sys.executable).parent))
    tool = beside or shutil.which(TOOL)
    if tool is None:
        raise ConfigError(
            f"{TOOL} is not installed, and TPC-H tables are made by it: pip install 'semistream[workloads]'"
        )
    return tool
