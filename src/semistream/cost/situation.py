"""What is known before a join is opened: R, a stream tuple, the memory and the stream, together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from semistream.algorithms.registry import resolve
from semistream.columns.rows import RowLayout
from semistream.cost.prediction import Prediction, predict_join
from semistream.cost.profile import CostProfile
from semistream.engine.algorithm import Algorithm
from semistream.engine.facts import MasterFacts, StreamFacts
from semistream.engine.join import LEAST_PAGE_ROWS, index_required, page_rows_for, read_columns
from semistream.engine.plan import Plan
from semistream.errors import BudgetError, ConfigError
from semistream.master.base import DEFAULT_PAGE_ROWS, Master
from semistream.parts.cache import Cache
from semistream.predict.counts import Workload
from semistream.predict.keys import KeyClasses
from semistream.spec import JoinSpec

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Situation:
    """Everything that a plan and a prediction ask for, but the algorithm and its options."""

    r: MasterFacts
    s: StreamFacts
    budget: int
    workload: Workload
    #: R in its finest cut, for budgets that are too small for the usual one (Parquet only)
    finest: MasterFacts | None = None

    @staticmethod
    def of(
        master: Master,
        spec: JoinSpec,
        stream_schema: pa.Schema,
        budget: int,
        keys: KeyClasses,
        *,
        direct: bool = False,
        batch: int = 100_000,
        drained: bool = False,
    ) -> Situation:
        """The situation of a join with this master data, as `SemiStreamJoin` would open it."""
        cut = page_rows_for(master, budget)
        return Situation(
            r=master_facts(master, spec, cut, direct),
            s=StreamFacts.of(stream_schema, spec, master.coder.is_key),
            budget=budget,
            workload=Workload(keys, batch, drained, spec.how),
            finest=None if cut is None else master_facts(master, spec, LEAST_PAGE_ROWS, direct),
        )

    @staticmethod
    def sketch(
        rows: int,
        budget: int,
        keys: KeyClasses,
        *,
        page_rows: int = DEFAULT_PAGE_ROWS,
        order: str = "key",
        direct: bool = False,
        batch: int = 100_000,
        drained: bool = False,
    ) -> Situation:
        """The papers' relations, 120 bytes per master and 20 per stream tuple, in a page store nobody has built."""
        if budget < 1:
            raise ConfigError(f"M={budget}: allowed are sizes from 1 byte")
        r = MasterFacts.sketch(rows, page_rows=page_rows, order=order, direct=direct)
        return Situation(r, StreamFacts.sketch(), budget, Workload(keys, batch, drained))

    @property
    def row_bytes(self) -> float:
        """Bytes of an output row, long values at 16."""
        return self.s.width + self.r.width

    def with_workload(self, **changes: Any) -> Situation:
        """The same with another stream: `keys`, `batch`, `drained`, `how` or how many tuples were `seen`."""
        return replace(self, workload=replace(self.workload, **changes))

    def plan(self, algorithm: Algorithm, options: Options | None = None) -> Plan[Any]:
        """The plan with which such a join would run."""
        if algorithm.needs_index and not self.r.has_index:
            raise index_required(algorithm.name)
        checked = algorithm.checked(options or {})
        try:
            return algorithm.plan(self.r, self.s, self.budget, checked)
        except BudgetError:
            if self.finest is None:
                raise
            return algorithm.plan(self.finest, self.s, self.budget, checked)

    def predict(self, algorithm: str, profile: CostProfile, options: Options | None = None) -> Prediction:
        """What an algorithm, by name or alias, would do and cost here."""
        chosen = resolve(algorithm)
        return predict_join(chosen, self.plan(chosen, options), self.workload, profile)


def master_facts(master: Master, spec: JoinSpec, page_rows: int | None = None, direct: bool = False) -> MasterFacts:
    """R as a join would see it; it is opened for a moment, and nothing of it is read."""
    columns = read_columns(master, spec)
    with master.open(columns, direct, page_rows) as reader:
        layout = RowLayout(reader.physical, Cache.HEADER, [master.may_be_null(name) for name in columns])
        return MasterFacts.of(master, reader, layout, direct)
