"""What every experiment is given: scale, seed, data, unit costs, and runs that are remembered.

One real run of an operator, with reads past the page cache, gives four answers: its counts alone, its counts priced
with the papers' unit costs, its counts priced with this machine's, and its wall time. Runs are kept in the out folder.

Contestants run twice and more: with their defaults, and with the sizes that are best by the clock in question.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from semistream.algorithms.registry import resolve
from semistream.cost.clock import pricing_of
from semistream.cost.profile import OVERLAP, CostProfile
from semistream.cost.situation import Options, Situation
from semistream.cost.tune import tune
from semistream.engine.join import SemiStreamJoin
from semistream.errors import BudgetError, ConfigError, StoreError
from semistream.lab.calibrate.calibrate import calibrate
from semistream.lab.figure import Point, Way
from semistream.lab.forms import path_of
from semistream.lab.measure.opening import open_named
from semistream.lab.measure.pace import Pace
from semistream.lab.measure.runs import Estimate, RunLog
from semistream.lab.measure.steady import RULES, Run, batch_rows, run_steady
from semistream.lab.measure.together import Together
from semistream.lab.papers_clock import papers_clock
from semistream.lab.shelf import Shelf
from semistream.lab.sources import Source, Synthetic
from semistream.lab.verdicts import DEFAULTS
from semistream.lab.workloads.relation import MASTER_ROW_BYTES
from semistream.master.base import Master
from semistream.master.open import open_master
from semistream.planner.stream import StreamSample
from semistream.predict.keys import KeyClasses
from semistream.spec import JoinSpec

WAYS: tuple[Way, ...] = ("papers", "machine", "wall")
#: by which unit costs contestants are tuned; what is only counted was tuned for the papers' disk
TUNED_FOR: Mapping[Way, str] = {"counts": "papers", "papers": "papers", "wall": "machine", "machine": "machine"}
PROFILE_FILE = "profile.json"
#: enough for a few rounds of a calibration; `--profile` brings a full one
_CALIBRATION_S = 10.0
#: of a stream whose keys follow no law: what is looked at, and the memory for looking some of it up
_SAMPLE_BATCH, _SAMPLE_BATCHES, _PROBE_BYTES = 65_536, 32, 64 << 20


@dataclass(frozen=True)
class Scale:
    """How large an experiment is: tuples of the papers' R of 100 million."""

    name: str
    rows: int


SCALES = {
    "small": Scale("small", 1_000_000),
    "medium": Scale("medium", 10_000_000),
    "paper": Scale("paper", 100_000_000),
}


def scale_named(name: str) -> Scale:
    if name not in SCALES:
        raise ConfigError(f"scale {name!r} is not known; allowed are {', '.join(SCALES)}")
    return SCALES[name]


class Lab:
    """The place where figures are measured. All its results are in `out`; data in `data`, `out`/data by default."""

    def __init__(
        self,
        out: Path,
        *,
        scale: Scale = SCALES["small"],
        seed: int = 1,
        profile: CostProfile | None = None,
        weather_dir: Path | None = None,
        data: Path | None = None,
        data_limit: int | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.out = out
        self.scale = scale
        self.seed = seed
        self.weather_dir = weather_dir
        self.data = out / "data" if data is None else data
        self.say = say or (lambda _: None)
        #: others that measure into the same folder
        self.together = Together(out / "raw", only_one=data_limit is not None)
        self.data.mkdir(parents=True, exist_ok=True)
        try:
            self.log = RunLog(out / "raw" / "runs.jsonl", self.together)
            machine = self._machine(profile)
        except BaseException:
            self.together.close()
            raise
        self.profiles: dict[str, CostProfile] = {"papers": papers_clock(machine), "machine": machine}
        self._tuning = dict(self.profiles)
        #: how fast the machine is while times are taken
        self.pace = Pace()
        self._masters: dict[str, Master] = {}
        #: stores that may be removed when others need their place; None without a limit
        self.shelf = None if data_limit is None else Shelf(self.data, data_limit, own=data is None)
        self._direct: bool | None = None
        self._sampled: dict[str, KeyClasses] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the stores that were opened."""
        for master in self._masters.values():
            master.close()
        self._masters.clear()
        self.together.close()

    def _machine(self, given: CostProfile | None) -> CostProfile:
        """This machine's unit costs, measured once per out folder: a second run prices as the first did."""
        with self.together.alone():
            return self._kept_or_measured(self.out / PROFILE_FILE, given)

    def _kept_or_measured(self, path: Path, given: CostProfile | None) -> CostProfile:
        if path.exists():
            kept = CostProfile.load(path)
            if given is not None and given.to_json() != kept.to_json():
                raise ConfigError(
                    f"{path} holds other unit costs than those given; results in {self.out} belong to them. "
                    "Choose another out folder, or leave the profile out"
                )
            return kept
        if given is None:
            self.say("calibrating this machine")
            given = calibrate(
                folder=self.data, seconds=_CALIBRATION_S, say=lambda what: self.say(f"calibrating: {what}")
            )
        given.save(path)
        return CostProfile.load(path)

    # ---------------------------------------------------------------------------------------------- data

    @property
    def rows(self) -> int:
        """R_t of this scale."""
        return self.scale.rows

    def synthetic(
        self,
        rows: int | None = None,
        skew: float = 1.0,
        *,
        repeated: bool = False,
        order: str = "key",
        page_rows: int | None = None,
    ) -> Synthetic:
        """The papers' relations with this lab's seed; R of this scale unless said otherwise."""
        return Synthetic(self.rows if rows is None else rows, skew, self.seed, repeated, order, page_rows=page_rows)

    def path(self, source: Source, form: str = "pages") -> Path:
        """R of a source in one of its forms (`forms.py`); written the first time."""
        if self.shelf is not None and form == "pages":
            self.shelf.fetch(source.store_name, source.rows * MASTER_ROW_BYTES, self.let_go)
        with self.together.alone():
            return path_of(source, form, self.data, self.say)

    def let_go(self, store: str) -> None:
        """A store is about to be removed."""
        self.say(f"removing {store}")
        master = self._masters.pop(store, None)
        if master is not None:
            master.close()

    def master(self, source: Source) -> Master:
        """The opened store of a source; the lab closes it."""
        path = self.path(source)
        if source.store_name not in self._masters:
            on = source.on if isinstance(source.on, str) else next(iter(source.on.values()))
            self._masters[source.store_name] = open_master(path, (on,))
        return self._masters[source.store_name]

    def memory(self, source: Source, share: float) -> int:
        """A share of R in bytes. Of synthetic data a tuple has 120 bytes, of the others what it takes in the store."""
        if isinstance(source, Synthetic):
            return int(source.rows * MASTER_ROW_BYTES * share)
        master = self.master(source)
        return int(master.n_rows * master.row_bytes * share)

    @property
    def direct(self) -> bool:
        """Whether the file system of the data reads past the page cache."""
        if self._direct is None:
            probe = replace(self.synthetic(min(self.rows, 10_000)), repeated=False)
            master = self.master(probe)
            try:
                master.open(list(master.schema.names[1:2]), direct=True).close()
                self._direct = True
            except StoreError:
                self.say("the file system refuses O_DIRECT: wall times are those of buffered reads")
                self._direct = False
        return self._direct

    @property
    def reads(self) -> str:
        """The same as `open_join` takes it."""
        return "direct" if self.direct else "mapped"

    def repriced(self, papers: CostProfile) -> Lab:
        """The same runs with another papers' clock: none is made, and contestants stay tuned as they were."""
        other = copy.copy(self)
        other.profiles = {**self.profiles, "papers": papers}
        other.log = self.log.remembered()
        return other

    def buffered(self) -> Lab:
        """The same lab with reads through the page cache, for operators whose single-page reads would take minutes."""
        other = copy.copy(self)
        other._direct = False
        return other

    # ---------------------------------------------------------------------------------------------- runs

    def open(self, algorithm: str, source: Source, memory: int, **options: Any) -> SemiStreamJoin:
        """A join of a source's R and S, as this lab reads."""
        return open_named(
            algorithm,
            master=self.master(source),
            on=source.on,
            memory=memory,
            stream_schema=source.stream_schema(self.data),
            reads=self.reads,
            **options,
        )

    def measure(
        self,
        algorithm: str,
        source: Source,
        memory: int,
        *,
        options: Options | None = None,
        turns: int | None = None,
    ) -> Run | None:
        """A steady run with a saturated stream, made or remembered; None where the operator refuses the budget.

        An option that is None is the operator's default, as if it were not there.
        """
        chosen = resolve(algorithm)
        name, batch = chosen.name, batch_rows(memory)
        settings: dict[str, Any] = {
            "run": "steady",
            "algorithm": name,
            "source": source.describe(),
            "memory": memory,
            "options": {name: value for name, value in (options or {}).items() if value is not None},
            "batch": batch,
            "turns": turns,
            "direct": self.direct,
            "rules": RULES,
        }

        def make(**schedule: Any) -> Mapping[str, Any]:
            self.say(f"{name}, R = {source.rows:,}, M = {memory:,}")
            try:
                with self.open(name, source, memory, **settings["options"], **schedule) as join:
                    return run_steady(join, source.stream(batch, self.data), batch, turns, self.together, self.pace)
            except BudgetError as error:
                return {"refused": str(error)}

        timed = self.log.once(settings, make, alone=False)
        if "refused" in timed:
            return None
        counted = timed
        if pricing_of(chosen).threads > 1:
            # Threads meet differently every time: what is counted, and priced, is a run with its phases in step.
            counted = self.log.once({**settings, "in_step": True}, partial(make, in_step=True), alone=False)
        return Run(name, settings, counted, timed, self.profiles)

    def tuned(
        self, algorithm: str, source: Source, memory: int, by: str, fixed: Options | None = None
    ) -> dict[str, Any]:
        """The options with the highest predicted rate by one of the profiles, `fixed` ones among them.

        Rounded to two digits, for nothing depends on the third and clocks that agree share a run. The defaults where
        no other sizes are better, or where there is no formula.
        """
        profile = self._tuning[by]
        settings = {
            "run": "tuned",
            "algorithm": resolve(algorithm).name,
            "source": source.describe(),
            "memory": memory,
            "fixed": dict(fixed or {}),
            "by": by,
            "direct": self.direct,
        }

        def make() -> Mapping[str, Any]:
            try:
                best = tune(algorithm, self.situation(source, memory), profile, fixed=fixed).best
            except ConfigError as error:
                return {"options": dict(fixed or {}), "why": str(error)}
            except BudgetError as error:
                return {"options": dict(fixed or {}), "refused": str(error)}
            chosen = {name: _rounded(value) for name, value in best.options.items() if name not in (fixed or {})}
            return {"options": {**chosen, **(fixed or {})}, "predicted_per_s": best.rate_per_s}

        return dict(self.log.once(settings, make, alone=False)["options"])

    def situation(self, source: Source, memory: int) -> Situation:
        """The same for the formulas, which say what a run will do before there is one."""
        on = source.on if isinstance(source.on, str) else dict(source.on)
        return Situation.of(
            self.master(source),
            JoinSpec.make(on, "inner"),
            source.stream_schema(self.data),
            memory,
            self.keys(source),
            direct=self.direct,
            batch=batch_rows(memory),
        )

    def keys(self, source: Source) -> KeyClasses:
        """The keys of a stream: by their law, or where they follow none, as a sample of the stream shows them."""
        try:
            return source.classes()
        except ConfigError:
            name = json.dumps(source.describe(), sort_keys=True)
        if name not in self._sampled:
            on = source.on if isinstance(source.on, str) else dict(source.on)
            sample = StreamSample(self.master(source), JoinSpec.make(on, "inner"), source.stream_schema(self.data))
            for batch in itertools.islice(source.stream(_SAMPLE_BATCH, self.data), _SAMPLE_BATCHES):
                sample.add(batch)
            sample.probe(batch, _PROBE_BYTES)
            self._sampled[name] = sample.statistics().keys
        return self._sampled[name]

    # -------------------------------------------------------------------------------------------- points

    def contest(
        self,
        figure: str,
        algorithm: str,
        x: float,
        source: Source,
        memory: int,
        *,
        fixed: Options | None = None,
        **settings: Any,
    ) -> Iterator[Point]:
        """A contestant at one place of an axis: tuned for each clock under its name, and with defaults beside it.

        Without a clock it is tuples per R-cycle that are counted. `fixed` options hold for both.
        """
        usual = self.measure(algorithm, source, memory, options=fixed)
        for way, by in TUNED_FOR.items():
            options = self.tuned(algorithm, source, memory, by, fixed)
            best = usual
            if options != dict(fixed or {}):
                best = self.measure(algorithm, source, memory, options=options) or usual
            for series, run, state in (
                (algorithm, best, "defaults" if best is usual else f"tuned for the {by} profile"),
                (f"{algorithm}{DEFAULTS}", usual, "defaults"),
            ):
                y = None if run is None else run.per_cycle() if way == "counts" else run.rate(way)
                # Whoever holds all of R reads nothing: no R-cycle ends then.
                if y is not None and y.mean > 0:
                    yield self.point(figure, way, series, x, y, run, tuning=state, **settings)

    def rates(self, figure: str, series: str, x: float, run: Run | None, **settings: Any) -> Iterator[Point]:
        """The service rate of a run by all three clocks; nothing where the budget was refused."""
        if run is not None:
            for way in WAYS:
                yield self.point(figure, way, series, x, run.rate(way), run, **settings)

    def point(
        self,
        figure: str,
        way: Way,
        series: str,
        x: float,
        y: Estimate,
        run: Run | None = None,
        **settings: Any,
    ) -> Point:
        """A point with what its run was, so that it can be read alone."""
        known: dict[str, Any] = {"scale": self.scale.name, "seed": self.seed}
        if run is not None:
            known |= {name: run.settings[name] for name in ("algorithm", "source", "memory", "options", "direct")}
            known |= {"d": run.symbols["d"], "h_R": run.symbols["h_R"], "h_S": run.symbols["h_S"]}
            known |= {"hit_share": run.hit_share().mean, "steady": run.steady, "cpus": run.timed.get("cpus")}
            if way == "wall":
                known |= {"taken": run.taken}
            if run.side_by_side is not None:
                overlap = self.profiles["papers"].units.get(f"{OVERLAP}.{run.algorithm}")
                known |= {"side_by_side": run.side_by_side, "cpu_share": run.cpu_share}
                known |= {"overlap": None if overlap is None else overlap.seconds}
            known.setdefault("tuning", "options given" if run.settings["options"] else "defaults")
        return Point(figure, way, series, x, y.mean, y.low, y.high, y.n, {**known, **settings})


def _rounded(value: float) -> float:
    """To two digits, upwards: a size that just holds a page must still hold it.

    >>> _rounded(0.327), _rounded(104_960), _rounded(17)
    (0.33, 110000, 17)
    """
    if not isinstance(value, int):
        return round(value, 2)
    step: int = 10 ** max(len(str(value)) - 2, 0)
    return -(-value // step) * step
