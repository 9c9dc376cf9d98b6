"""Changes of R, as they come from outside: checked, coded, and applied to the rows that a version has.

Two forms. A *change feed* says of whole rows what became of them (`_change_type`): R is a multiset of rows, of which
deletes and pre-images take one equal row away each, and inserts and post-images add one. Other rows are *states*: those
of a key replace all that the key has, and `deletes` lists keys that are to have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semistream.columns.border import check_batch
from semistream.columns.keys import KeyCoder
from semistream.columns.physical import PhysicalColumn, PhysicalSchema
from semistream.errors import ConfigError, SchemaError, StoreError
from semistream.master.base import Int64s
from semistream.master.live import physical_schema
from semistream.master.sorting import int64_view
from semistream.master.sources import Source, open_source

CHANGE_TYPE, COMMIT, COMMITTED_AT = "_change_type", "_commit_version", "_commit_timestamp"
_ABOUT = (CHANGE_TYPE, COMMIT, COMMITTED_AT)
_EFFECT = "__effect"
#: what a row of changes does: adds a row or takes one away (a feed), is one of its key's rows, empties its key
_ADD, _TAKE, _STATE, _EMPTY = 1, -1, 2, 3
_EFFECTS = {"insert": _ADD, "update_postimage": _ADD, "delete": _TAKE, "update_preimage": _TAKE}

Int8s = npt.NDArray[np.int8]


class ChangeReader:
    """Reads changes of R as physical batches: code, R's columns, effect, commit.

    `since` leaves out commits up to a number that were applied before.
    """

    def __init__(
        self,
        changes: Source | None,
        deletes: Source | None,
        schema: pa.Schema,
        on: Sequence[str],
        coder: KeyCoder,
        batch_bytes: int,
        since: int | None = None,
    ) -> None:
        self._on, self._coder, self._since = list(on), coder, since
        self._names = schema.names
        self._r = PhysicalSchema(schema)
        self._rows = None if changes is None else open_source(changes, None, batch_bytes)
        self._deletes = None if deletes is None else open_source(deletes, None, batch_bytes)
        found = pa.schema([]) if self._rows is None else self._rows[0]
        # A column of R's own is no word about the change, whatever its name.
        about = [name for name in _ABOUT if name in found.names and name not in schema.names]
        self.is_feed, self._has_commit, self._has_time = (name in about for name in _ABOUT)
        if self._rows is not None:
            self._columns = _matching(found, schema, schema.names, _ABOUT, "changes")
            if self._has_commit and not pa.types.is_integer(found.field(COMMIT).type):
                kind = found.field(COMMIT).type
                raise SchemaError(f"column {COMMIT!r} of the changes has the type {kind}; it must be a whole number")
        if self._deletes is not None:
            if self.is_feed:
                raise ConfigError(
                    f"deletes= goes with rows that are states of their keys; these changes have {CHANGE_TYPE!r}, whose "
                    "'delete' rows say what is to go: leave one of them out"
                )
            self._key_columns = _matching(self._deletes[0], schema, list(on), (), "deletes")
        self.schema = physical_schema(self._r).append(pa.field(_EFFECT, pa.int8())).append(pa.field(COMMIT, pa.int64()))
        self.null_key_rows = 0
        self.rows_read = 0
        self.last_commit: int | None = None
        self._newest: Any = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        if self._deletes is not None:
            for batch in self._deletes[1]:
                yield self._emptied(batch)
        if self._rows is not None:
            for batch in self._rows[1]:
                yield self._changed(batch)

    def _changed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        check_batch(batch, "the changes")
        self.rows_read += batch.num_rows
        commits = np.zeros(batch.num_rows, dtype=np.int64)
        if self._has_commit and batch.num_rows:
            commits = self._commits(batch.column(COMMIT))
            self.last_commit = max(int(commits.max()), self.last_commit or int(commits.max()))
        if self._has_time and batch.num_rows:
            newest = pc.max(batch.column(COMMITTED_AT)).as_py()
            if newest is not None and (self._newest is None or newest > self._newest):
                self._newest = newest
        effects = np.full(batch.num_rows, _STATE, dtype=np.int8)
        if self.is_feed:
            effects = _effects(batch.column(CHANGE_TYPE))
        arrays = [
            column.to_physical(batch.column(name)) for name, column in zip(self._names, self._columns, strict=True)
        ]
        coded = self._coded([batch.column(name) for name in self._on], arrays, effects, commits)
        if self._since is not None and self._has_commit:
            coded = coded.filter(pc.greater(coded.column(coded.num_columns - 1), self._since))
        return self._with_key(coded)

    def _commits(self, column: pa.Array) -> Int64s:
        if column.null_count:
            raise SchemaError(f"column {COMMIT!r} of the changes holds nulls: give every change its commit, or none")
        commits: Int64s = column.cast(pa.int64()).to_numpy()
        return commits

    @property
    def committed_at(self) -> str | None:
        """The last time of a commit, as text."""
        return self._newest.isoformat() if hasattr(self._newest, "isoformat") else self._newest and str(self._newest)

    def _emptied(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        check_batch(batch, "the deletes")
        self.rows_read += batch.num_rows
        given = dict(zip(self._on, self._key_columns, strict=True))
        arrays = [
            given[column.name].to_physical(batch.column(column.name))
            if column.name in given
            else pa.nulls(batch.num_rows, column.physical)
            for column in self._r.columns
        ]
        effects = np.full(batch.num_rows, _EMPTY, dtype=np.int8)
        commits = np.zeros(batch.num_rows, dtype=np.int64)
        return self._with_key(self._coded([batch.column(name) for name in self._on], arrays, effects, commits))

    def _coded(self, keys: list[pa.Array], arrays: list[pa.Array], effects: Int8s, commits: Int64s) -> pa.RecordBatch:
        """One batch of all; a null in place of the code where there is no key."""
        codes, valid = self._coder.codes(keys)
        coded = pa.array(codes, mask=None if valid is None else ~valid)
        return pa.RecordBatch.from_arrays([coded, *arrays, pa.array(effects), pa.array(commits)], schema=self.schema)

    def _with_key(self, coded: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that have a key. What has none is not in R: only how many there are is known."""
        if not coded.column(0).null_count:
            return coded
        usable = coded.column(0).is_valid()
        lost = coded.column(coded.num_columns - 2).filter(pc.invert(usable)).to_numpy()
        self.null_key_rows += int(np.isin(lost, (_ADD, _STATE)).sum()) - int((lost == _TAKE).sum())
        return coded.filter(usable)


def _matching(
    found: pa.Schema, schema: pa.Schema, wanted: Sequence[str], besides: Sequence[str], what: str
) -> list[PhysicalColumn]:
    """The columns of changes, in R's order; refuses others than R's, and other types."""
    columns = []
    for name in wanted:
        count = found.names.count(name)
        if count != 1:
            raise SchemaError(
                f"the {what} have {count or 'no'} columns named {name!r}; they must have R's columns, "
                f"each once: {', '.join(wanted)}"
            )
        ours, theirs = schema.field(name), found.field(name)
        column = PhysicalColumn.of(pa.field(name, theirs.type, ours.nullable))
        known = PhysicalColumn.of(ours)
        # Views, dictionaries and large offsets are other forms of the same values; nested values are coded by type.
        if theirs.type != ours.type and (column.physical != known.physical or column.nested or known.nested):
            raise SchemaError(
                f"column {name!r} of the {what} has the type {theirs.type}, in R it has {ours.type}: cast it, or build "
                "the store again with build_pages"
            )
        columns.append(column)
    foreign = [name for name in found.names if name not in wanted and name not in besides]
    if foreign:
        raise SchemaError(
            f"the {what} have the column {foreign[0]!r}, which R does not have; leave it out, or build the store again "
            f"with it; allowed are {', '.join([*wanted, *besides])}"
        )
    return columns


def _effects(kinds: pa.Array) -> Int8s:
    """What the rows of a feed do."""
    if pa.types.is_dictionary(kinds.type):
        kinds = kinds.dictionary_decode()
    try:
        kinds = kinds.cast(pa.string())
    except pa.ArrowException as error:
        raise SchemaError(f"column {CHANGE_TYPE!r} has the type {kinds.type}; it must be a string") from error
    effects = np.zeros(len(kinds), dtype=np.int8)
    for name, effect in _EFFECTS.items():
        same = pc.fill_null(pc.equal(kinds, name), False).to_numpy(zero_copy_only=False)
        effects[same] = effect
    if len(effects) and not effects.all():
        unknown = kinds[int(np.argmin(effects != 0))].as_py()
        raise SchemaError(f"a change has the {CHANGE_TYPE} {unknown!r}; allowed are {', '.join(_EFFECTS)}")
    return effects


@dataclass(frozen=True)
class Applied:
    """What became of some codes: those whose rows are others now, and these rows, sorted by code."""

    codes: Int64s
    rows: pa.RecordBatch
    #: rows that these codes had before
    dead: int


class Applier:
    """Applies changes to the rows of their codes; a piece at a time, which has all changes of its codes."""

    def __init__(self, schema: pa.Schema, on: Sequence[str], *, exact: bool, is_feed: bool, has_commits: bool) -> None:
        """`schema` is that of the rows; `exact`: a code is a key."""
        self._schema = schema
        self._keys = [] if exact else [schema.get_field_index(name) for name in on]
        self._on = [schema.get_field_index(name) for name in on]
        self._is_feed, self._has_commits = is_feed, has_commits

    def apply(self, rows: Iterable[pa.RecordBatch], changes: pa.RecordBatch) -> Applied:
        before = pa.Table.from_batches(rows, self._schema)
        count = before.num_rows
        columns = [pa.concat_arrays([*before.column(i).chunks, changes.column(i)]) for i in range(len(self._schema))]
        codes = int64_view(columns[0])
        keys = _numbered(codes, [columns[i] for i in self._keys])
        numbers = _numbered(keys, [column for i, column in enumerate(columns) if i and i not in self._keys])
        different, first = np.unique(numbers, return_index=True)
        had = np.bincount(numbers[:count], minlength=len(different))
        effects = changes.column(len(self._schema)).to_numpy()
        commits = int64_view(changes.column(len(self._schema) + 1))
        if self._is_feed:
            has = self._fed(numbers[count:], had, effects, commits, columns, count)
        else:
            has = _states(numbers, keys, count, effects, commits, len(different))
        owner = codes[first]
        changed = np.unique(owner[had != has])
        stays = np.isin(owner, changed, assume_unique=False) & (has > 0)
        # Rows are numbered by code first, so they come out in the order of their codes.
        ids = pa.array(np.repeat(first[stays], has[stays]))
        taken = pa.RecordBatch.from_arrays([column.take(ids) for column in columns], schema=self._schema)
        return Applied(changed, taken, int(np.isin(codes[:count], changed).sum()))

    def _fed(
        self,
        numbers: Int64s,
        had: Int64s,
        effects: Int8s,
        commits: Int64s,
        columns: list[pa.Array],
        count: int,
    ) -> Int64s:
        """How often each row is there after a feed. Within a commit rows have no order, so its end must fit."""
        order = np.lexsort((commits, numbers))
        row, commit = numbers[order], commits[order]
        last = np.append((row[1:] != row[:-1]) | (commit[1:] != commit[:-1]), True)[: len(row)]
        heads = np.flatnonzero(np.append(True, row[1:] != row[:-1])[: len(row)])
        running = np.cumsum(effects[order], dtype=np.int64)
        lengths = np.diff(np.append(heads, len(row)))
        begin = running[heads] - effects[order][heads]
        running += had[row] - np.repeat(begin, lengths)
        wrong = np.flatnonzero(last & (running < 0))
        if len(wrong):
            # The earliest commit that does not fit, not the smallest row.
            at = wrong[np.argmin(commit[wrong])]
            raise self._misfit(columns, count + int(order[at]), int(commit[at]))
        return had + np.bincount(numbers, weights=effects, minlength=len(had)).astype(np.int64)

    def _misfit(self, columns: list[pa.Array], at: int, commit: int) -> StoreError:
        key = ", ".join(f"{self._schema.names[i]}={columns[i][at].as_py()!r}" for i in self._on)
        where = f"commit {commit}" if self._has_commits else "they"
        takes = "takes" if self._has_commits else "take"
        return StoreError(
            f"the changes do not fit this version: {where} {takes} a row of the key {key} away that is not there, or "
            "more often than it is there. Nothing was changed: give the changes since the version in force, and those "
            "that know only keys as deletes=; or build the store again"
        )


def _states(numbers: Int64s, keys: Int64s, count: int, effects: Int8s, commits: Int64s, different: int) -> Int64s:
    """How often each row is there after states: those of a key's last commit, or none if it was emptied."""
    touched = np.zeros(int(keys.max(initial=-1)) + 1, dtype=np.bool_)
    touched[keys[count:]] = True
    newest = np.full(len(touched), np.iinfo(np.int64).min)
    is_state = effects == _STATE
    np.maximum.at(newest, keys[count:][is_state], commits[is_state])
    stays = numbers[:count][~touched[keys[:count]]]
    comes = numbers[count:][is_state & (commits == newest[keys[count:]])]
    return np.bincount(np.concatenate([stays, comes]), minlength=different)


def _numbered(start: Int64s, columns: Sequence[pa.Array]) -> Int64s:
    """The same number for rows that have the same `start` and equal values; numbers are in the order of `start`."""
    numbers = np.unique(start, return_inverse=True)[1].astype(np.int64)
    for column in columns:
        if pa.types.is_null(column.type):
            continue
        values = _values_of(column)
        both = numbers * (int(values.max(initial=0)) + 1) + values
        numbers = np.unique(both, return_inverse=True)[1].astype(np.int64)
    return numbers


def _values_of(column: pa.Array) -> Int64s:
    """The same number from 0 on for equal values. Nulls are equal to each other, so are NaNs, and both zeros."""
    if pa.types.is_floating(column.type):
        plain = column.to_numpy(zero_copy_only=False) + 0.0
        plain[np.isnan(plain)] = np.nan
        bits = pa.array(plain.view(f"int{plain.itemsize * 8}"))
        column = pc.if_else(column.is_null(), pa.scalar(None, bits.type), bits)
    coded = column.dictionary_encode()
    indices: Int64s = coded.indices.fill_null(len(coded.dictionary)).to_numpy().astype(np.int64)
    return indices
