"""Whether a DataFrame is an enrichment whose rows can be written by the worker that joins them.

The answer is in Spark's analysed plan. From its top down there may be nodes that choose, rename, reorder and filter
columns, in expressions that mean the same in Arrow (`expressions.py`); then comes the `MapInArrow` of an enrichment,
whose function is in the plan too. So nothing has to be remembered when `enrich` is called, and it does not matter
through how many views and aliases its rows came.

    Project, Filter, SubqueryAlias, View ... -> MapInArrow enrich(...) -> source

What is below the enrichment may again be of this kind: then both joins are done in the same pass. Columns of the
master data that are dropped on the way up are not joined at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    _parse_datatype_json_string,
)

from semistream.engine.output import is_apart
from semistream.spark.expressions import (
    Both,
    Column,
    Comparison,
    Constant,
    Either,
    Expression,
    Missing,
    Negated,
    NullSafeEqual,
    OneOf,
    Selection,
    Widened,
)
from semistream.spark.mapping import Work

#: the time zone of timestamps in files; Spark's is that of the session, which changes how they are shown only
ZONE = "UTC"
_WHOLE = (ByteType, ShortType, IntegerType, LongType)
#: types with the same order in Spark and Arrow; truth values have no order in Arrow
_ORDERED = (*_WHOLE, StringType, BinaryType, DateType, DecimalType, TimestampType, TimestampNTZType)
_COMPARISONS = {
    "EqualTo": "equal",
    "LessThan": "less",
    "LessThanOrEqual": "less_equal",
    "GreaterThan": "greater",
    "GreaterThanOrEqual": "greater_equal",
}
_PASSING = ("SubqueryAlias", "View")


class NotFused(Exception):
    """Why the rows of a DataFrame go through Spark before they are written."""


@dataclass(frozen=True)
class Stage:
    """An enrichment, and what is done with its rows before the next stage has them."""

    work: Work
    selection: Selection

    def __call__(
        self, batches: Iterator[pa.RecordBatch], letter: Callable[[pa.RecordBatch], None] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The stage's rows; `letter` is called with the tuples that have no match, if these have a table."""
        for batch in self.work(batches) if letter is None else self.work.with_letters(batches):
            if letter is not None and is_apart(batch):
                letter(batch)
            else:
                yield self.selection.on(batch)


@dataclass(frozen=True)
class Fused:
    """A DataFrame as its source and the stages that make it of the source's rows, the first one first."""

    source: DataFrame
    stages: tuple[Stage, ...]

    @property
    def label(self) -> str:
        return " after ".join(stage.work.__name__ for stage in reversed(self.stages))


def stored_schema(df: DataFrame) -> pa.Schema:
    """The rows of a DataFrame as files hold them: every column may be null, timestamps are in UTC."""
    loose = _parse_datatype_json_string(df._jdf.schema().asNullable().json())
    assert isinstance(loose, StructType)
    return to_arrow_schema(loose, timezone=ZONE)


def fused(df: DataFrame) -> Fused:
    """The DataFrame as a source and what workers do with it; `NotFused` says why it cannot be taken so."""
    try:
        if not df.isStreaming and (df.storageLevel.useMemory or df.storageLevel.useDisk):
            raise NotFused("Spark keeps them (cache or persist)")
        return _fused(df, stored_schema(df))
    except (Py4JError, PySparkException) as error:
        # A plan of a Spark that is made otherwise than we know.
        raise NotFused(f"Spark's plan cannot be read: {str(error).splitlines()[0]}") from error


def _fused(df: DataFrame, schema: pa.Schema) -> Fused:
    plan = df._jdf.queryExecution().analyzed()
    passed: list[JavaObject] = []
    node = plan
    while _kind(node) != "MapInArrow":
        if _kind(node) not in (*_PASSING, "Project", "Filter"):
            raise NotFused(f"{node.nodeName()} comes after the enrichment, or there is none")
        passed.append(node)
        node = node.child()
    selection = _Selecting(node)
    for step in reversed(passed):
        selection.take(step)
    made = selection.made([_id_of(attribute) for attribute in _items(plan.output())], schema)
    work, given = _work_of(node).narrowed(made.places(), len(made.types))
    stage = Stage(work, replace(made, given=given))
    session = df.sparkSession
    dataset = session.sparkContext._jvm.org.apache.spark.sql.classic.Dataset  # type: ignore[union-attr]
    source = DataFrame(dataset.ofRows(session._jsparkSession, node.child()), session)
    try:
        below = _fused(source, stored_schema(source))
    except NotFused:
        return Fused(source, (stage,))
    if not _share(*below.stages, stage):
        return Fused(source, (stage,))
    return Fused(below.source, (*below.stages, stage))


def _share(*stages: Stage) -> bool:
    """Whether one process can hold the joins of all stages: none is opened late, and none is the same as another."""
    joins = [stage.work.joins for stage in stages]
    return all(joins) and sum(map(len, joins)) == len(frozenset().union(*joins))


def _work_of(node: JavaObject) -> Work:
    """The function of a `MapInArrow`, if it is an enrichment's."""
    named = node.functionExpr()
    if not str(named.name()).startswith("enrich("):
        raise NotFused(f"the function {named.name()} of mapInArrow is not an enrichment")
    found: Any = cloudpickle.loads(bytes(named.func().command().unsafeArray()))
    # A function with its type; one that is very large is sent another way, and is not found here.
    work = found[0] if isinstance(found, tuple) else found
    if not isinstance(work, Work):
        raise NotFused(f"the function {named.name()} of mapInArrow is not an enrichment")
    return work


class _Selecting:
    """What becomes of the columns of a `MapInArrow` on the way up."""

    def __init__(self, node: JavaObject) -> None:
        output = _items(node.output())
        self._values: dict[object, Expression] = {_id_of(column): Column(at) for at, column in enumerate(output)}
        fields = [StructField(str(at), _type_of(column)) for at, column in enumerate(output)]
        self._types = tuple(to_arrow_schema(StructType(fields), timezone=ZONE).types)
        self._conditions: list[Expression] = []
        self._common: dict[str, JavaObject] = {}

    def take(self, node: JavaObject) -> None:
        if _kind(node) == "Filter":
            self._conditions.append(self._condition(node.condition()))
        elif _kind(node) == "Project":
            # All of them see what is below.
            self._values |= [(_id_of(column), self._column(column)) for column in _items(node.projectList())]

    def made(self, output: list[object], schema: pa.Schema) -> Selection:
        columns = tuple(self._values[column] for column in output)
        every = tuple(range(len(self._types)))
        return Selection(self._types, every, tuple(self._conditions), columns, schema.serialize().to_pybytes())

    def _column(self, node: JavaObject) -> Expression:
        """A column as it is, or a constant."""
        while _kind(node) == "Alias":
            node = node.child()
        found = self._plain(node)
        if found is None:
            raise NotFused(f"the column {node.toString()} is computed")
        return found

    def _plain(self, node: JavaObject) -> Expression | None:
        if _kind(node) == "AttributeReference":
            found = self._values.get(_id_of(node))
            if found is None:
                raise NotFused(f"the column {node.toString()} does not come from the enrichment")
            return found
        if _kind(node) == "CommonExpressionRef":
            return self._operand(self._common[str(node.id().toString())])
        inner = node
        while _kind(inner) == "Cast":
            inner = inner.child()
        return _constant(node) if _kind(inner) == "Literal" else None

    def _operand(self, node: JavaObject) -> Expression:
        """Something to compare: a column, one made wider, or a constant."""
        found = self._plain(node)
        if found is not None:
            return found
        if _kind(node) == "Cast":
            wanted, given = _type_of(node), _type_of(node.child())
            if wanted == given:
                return self._operand(node.child())
            if isinstance(wanted, _WHOLE) and isinstance(given, _WHOLE) and _bits(wanted) > _bits(given):
                return Widened(self._operand(node.child()), to_arrow_type(wanted))
        raise NotFused(f"the expression {node.toString()} is left to Spark")

    def _condition(self, node: JavaObject) -> Expression:
        kind = _kind(node)
        build: Callable[[JavaObject], Expression] | None = {
            "And": lambda it: Both(self._condition(it.left()), self._condition(it.right())),
            "Or": lambda it: Either(self._condition(it.left()), self._condition(it.right())),
            "Not": lambda it: Negated(self._condition(it.child())),
            "IsNull": lambda it: Missing(self._operand(it.child())),
            "IsNotNull": lambda it: Negated(Missing(self._operand(it.child()))),
            "EqualNullSafe": self._null_safe,
            "In": self._one_of,
            "Between": lambda it: self._condition(it.replacement()),
            "With": self._with,
            **dict.fromkeys(_COMPARISONS, self._compared),
        }.get(kind)
        if build is not None:
            return build(node)
        found = self._plain(node)
        if found is None:
            raise NotFused(f"the condition {node.toString()} is left to Spark")
        return found

    def _compared(self, node: JavaObject) -> Expression:
        how = _COMPARISONS[_kind(node)]
        _comparable(node, [node.left(), node.right()], ordered=how != "equal")
        return Comparison(how, self._operand(node.left()), self._operand(node.right()))

    def _null_safe(self, node: JavaObject) -> Expression:
        _comparable(node, [node.left(), node.right()], ordered=False)
        return NullSafeEqual(self._operand(node.left()), self._operand(node.right()))

    def _with(self, node: JavaObject) -> Expression:
        """BETWEEN names its value once and compares it twice."""
        for named in _items(node.defs()):
            self._common[str(named.id().toString())] = named.child()
        return self._condition(node.child())

    def _one_of(self, node: JavaObject) -> Expression:
        choices = _items(node.list())
        _comparable(node, [node.value(), *choices], ordered=False)
        values = []
        for choice in choices:
            found = self._operand(choice)
            if not isinstance(found, Constant):
                raise NotFused(f"the condition {node.toString()} is left to Spark")
            values.append(found.value)
        known = tuple(value for value in values if value is not None)
        return OneOf(self._operand(node.value()), known, len(known) < len(values), _arrow_type(_type_of(node.value())))


def _comparable(node: JavaObject, sides: list[JavaObject], ordered: bool) -> None:
    """Refuse what Arrow may compare otherwise than Spark."""
    types = [_type_of(side) for side in sides]
    if any(kind != types[0] for kind in types[1:]) or not _is_comparable(types[0], ordered):
        named = " and ".join(dict.fromkeys(kind.simpleString() for kind in types))
        raise NotFused(f"the comparison {node.toString()} of {named} is left to Spark")
    if all(_kind(side) == "Literal" for side in sides):
        raise NotFused(f"the condition {node.toString()} has no column")


def _is_comparable(kind: DataType, ordered: bool) -> bool:
    if isinstance(kind, StringType):
        # Other collations, and those of CHAR and VARCHAR, are types of their own.
        return kind == StringType()
    return isinstance(kind, _ORDERED) or (not ordered and isinstance(kind, BooleanType))


def _constant(node: JavaObject) -> Constant:
    """A literal, cast or not, as Spark itself works it out."""
    kind = _type_of(node)
    if not isinstance(kind, (*_ORDERED, BooleanType)) or not _is_comparable(kind, ordered=False):
        raise NotFused(f"the constant {node.toString()} of type {kind.simpleString()} is left to Spark")
    value = node.eval(None)
    if isinstance(value, JavaObject):
        # A text or a decimal number, in a class of Spark's own.
        value = str(value.toString())
        value = Decimal(value) if isinstance(kind, DecimalType) else value
    # Days and microseconds come as whole numbers, which Arrow takes for dates and timestamps.
    return Constant(value, _arrow_type(kind))


def _arrow_type(kind: DataType) -> pa.DataType:
    return to_arrow_type(kind, timezone=ZONE)


def _bits(kind: DataType) -> int:
    return int(to_arrow_type(kind).bit_width)


def _type_of(node: JavaObject) -> DataType:
    return _parse_datatype_json_string(node.dataType().json())


def _id_of(attribute: JavaObject) -> tuple[int, str]:
    found = attribute.exprId()
    return int(found.id()), str(found.jvmId().toString())


def _kind(node: JavaObject) -> str:
    return str(node.getClass().getSimpleName())


def _items(sequence: JavaObject) -> list[JavaObject]:
    return [sequence.apply(at) for at in range(sequence.size())]
