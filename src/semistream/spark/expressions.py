"""Columns and conditions that a worker evaluates on Arrow batches with exactly Spark's result.

A closed set on purpose: each class here means in Arrow what its Spark namesake means, with nulls in three-valued
logic. Whatever is not here (arithmetic, functions, comparisons of floats, for which Spark has rules of its own about
NaN and -0.0) is left to Spark. `fusing.py` makes these from Spark's plan.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

#: an array, or a scalar that stands for the same value in all rows
Value = Any
Columns = Sequence[pa.Array]


class Expression(ABC):
    """A value for each row of a batch, made of its columns."""

    @abstractmethod
    def on(self, columns: Columns) -> Value: ...

    def places(self) -> frozenset[int]:
        """The columns that the value is made of."""
        parts = [part for part in vars(self).values() if isinstance(part, Expression)]
        return frozenset[int]().union(*(part.places() for part in parts))


@dataclass(frozen=True)
class Column(Expression):
    at: int

    def on(self, columns: Columns) -> Value:
        return columns[self.at]

    def places(self) -> frozenset[int]:
        return frozenset((self.at,))


@dataclass(frozen=True)
class Constant(Expression):
    value: Any
    type: pa.DataType

    def on(self, columns: Columns) -> Value:
        return pa.scalar(self.value, self.type)


@dataclass(frozen=True)
class Widened(Expression):
    """A whole number as one with more bits."""

    child: Expression
    type: pa.DataType

    def on(self, columns: Columns) -> Value:
        return self.child.on(columns).cast(self.type)


@dataclass(frozen=True)
class Comparison(Expression):
    """`how` is the name of Arrow's function; null where a side is null."""

    how: str
    left: Expression
    right: Expression

    def on(self, columns: Columns) -> Value:
        return pc.call_function(self.how, [self.left.on(columns), self.right.on(columns)])


@dataclass(frozen=True)
class NullSafeEqual(Expression):
    """SQL's `<=>`: two nulls are equal, a null and a value are not; never null."""

    left: Expression
    right: Expression

    def on(self, columns: Columns) -> Value:
        left, right = self.left.on(columns), self.right.on(columns)
        both_null = pc.and_(pc.is_null(left), pc.is_null(right))
        return pc.or_(pc.fill_null(pc.equal(left, right), False), both_null)


@dataclass(frozen=True)
class Both(Expression):
    left: Expression
    right: Expression

    def on(self, columns: Columns) -> Value:
        return pc.and_kleene(self.left.on(columns), self.right.on(columns))


@dataclass(frozen=True)
class Either(Expression):
    left: Expression
    right: Expression

    def on(self, columns: Columns) -> Value:
        return pc.or_kleene(self.left.on(columns), self.right.on(columns))


@dataclass(frozen=True)
class Negated(Expression):
    child: Expression

    def on(self, columns: Columns) -> Value:
        return pc.invert(self.child.on(columns))


@dataclass(frozen=True)
class Missing(Expression):
    """IS NULL; NaN is a value."""

    child: Expression

    def on(self, columns: Columns) -> Value:
        return pc.is_null(self.child.on(columns))


@dataclass(frozen=True)
class OneOf(Expression):
    """IN a list of constants: null where the value is null, or where the list has a null and not the value."""

    child: Expression
    values: tuple[Any, ...]
    with_null: bool
    type: pa.DataType

    def on(self, columns: Columns) -> Value:
        value = self.child.on(columns)
        found = pc.is_in(value, value_set=pa.array(self.values, self.type))
        unknown = pa.scalar(None, pa.bool_())
        if self.with_null:
            found = pc.if_else(found, True, unknown)
        return pc.if_else(pc.is_valid(value), found, unknown)


@dataclass(frozen=True)
class Selection:
    """The rows for which every condition is true, and the columns wanted of them, with the types they are to have.

    `types` are those that Spark takes the enrichment's columns for; a join may hold them in another form. `given` says
    which of these come: those that nobody wants need not.
    """

    types: tuple[pa.DataType, ...]
    given: tuple[int, ...]
    conditions: tuple[Expression, ...]
    columns: tuple[Expression, ...]
    schema: bytes

    @cached_property
    def _wanted(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.schema))

    def places(self) -> frozenset[int]:
        """The columns that are wanted, or that a condition looks at."""
        return frozenset[int]().union(*(one.places() for one in (*self.conditions, *self.columns)))

    def on(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        schema, rows = self._wanted, batch.num_rows
        given: list[Value] = [None] * len(self.types)
        for at, array in zip(self.given, batch.columns, strict=True):
            given[at] = _cast(array, self.types[at])
        mask: Value | None = None
        for condition in self.conditions:
            found = pc.fill_null(condition.on(given), False)
            mask = found if mask is None else pc.and_(mask, found)
        # Columns first: rows are taken only of those that are wanted.
        values = [_filled(column.on(given), rows) for column in self.columns]
        made = pa.RecordBatch.from_arrays(
            [_cast(value, field.type) for value, field in zip(values, schema, strict=True)], schema=schema
        )
        return made if mask is None else made.filter(_filled(mask, rows))


def _filled(value: Value, rows: int) -> pa.Array:
    return pa.repeat(value, rows) if isinstance(value, pa.Scalar) else value


def _cast(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    return array if array.type.equals(wanted) else array.cast(wanted)
