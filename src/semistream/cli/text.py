"""CSV and newline-delimited JSON as a stream, read block by block.

Text has no types. What a column holds is told (the key by R, others by the user) or inferred from the first block of
the first file, and then it is fixed: a later value that does not fit is an error that names its place, never a null or
another type. What would change a value is not inferred: a column with leading zeros or with numbers of more digits
than a double keeps stays a text, and a text in JSON is a text even if it looks like a time.
"""

from __future__ import annotations

import io
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json

from semistream.cli.streams import PACKED
from semistream.columns.regrouping import regrouped
from semistream.errors import SchemaError, StoreError

#: A block is this part of the budget, within these bounds.
BLOCK_PART = 32
LEAST_BLOCK_BYTES, MOST_BLOCK_BYTES = 64 << 10, 8 << 20
_READ_ERRORS = (pa.ArrowException, OSError)
#: Digits that a number would lose: zeros in front, or more of them than a double has.
_NOT_A_NUMBER = r"^[+-]?(0[0-9]|[0-9]{17})"
_NOT_FITTING = re.compile(
    r"In CSV column #(\d+): Row #(\d+): CSV conversion error to .*?: (invalid value '.*'|.*)", re.S
)
_SHOWN_CHARACTERS = 80
_WHOLE = pa.decimal128(38, 0)


class TextFiles(ABC):
    """Text files with the same columns, as rows of one schema."""

    #: only reading all of them would tell
    n_rows: int | None = None
    #: by the bytes of the files and the first block; None if they are packed
    likely_rows: int | None = None

    def __init__(
        self,
        files: Sequence[Path],
        keys: Mapping[str, pa.DataType],
        given: Mapping[str, pa.DataType],
        memory_bytes: int,
        *,
        tabs: bool = False,
    ) -> None:
        """`keys` are types that R has, `given` those that the user has said, by the stream's names."""
        self._files = files
        self._keys, self._given = keys, given
        self._types = {**keys, **given}
        self._tabs = tabs
        self._block_bytes = min(max(memory_bytes // BLOCK_PART, LEAST_BLOCK_BYTES), MOST_BLOCK_BYTES)
        self.schema: pa.Schema = pa.schema([])
        self.schema = self._inferred(files[0])
        first = next(self._read(files[0]), None)
        self._row_bytes = first.nbytes / first.num_rows if first is not None and first.num_rows else 1.0
        size = sum(file.stat().st_size for file in files)
        if not any(file.suffix.lower() in PACKED for file in files):
            read = min(self._block_bytes, files[0].stat().st_size)
            self.likely_rows = round(size * (0 if first is None else first.num_rows) / max(read, 1))
        for name in given:
            if name not in self.schema.names:
                raise SchemaError(
                    f"--stream-schema names the column {name!r}, which {files[0]} has not; it has "
                    f"{', '.join(self.schema.names)}"
                )

    def rows_within(self, n_bytes: int, most: int) -> int:
        """Number of rows that take about `n_bytes` in memory, from 1 to `most`; by the first block."""
        return max(1, min(most, int(n_bytes / max(self._row_bytes, 1.0))))

    def batches(
        self, columns: Sequence[str], first_row: int, batch_rows: int, threads: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Batches of at most `batch_rows` rows, with exactly these columns; one thread reads, so rows have numbers."""
        return regrouped((block.select(list(columns)) for block in self._blocks(first_row)), batch_rows)

    def _blocks(self, first_row: int) -> Iterator[pa.RecordBatch]:
        for file in self._files:
            for block in self._read(file):
                if first_row < block.num_rows:
                    yield block.slice(first_row)
                first_row = max(first_row - block.num_rows, 0)

    def _remedy(self, name: str) -> str:
        if name in self._keys and name not in self._given:
            return "that is the type of the key in R: correct the file"
        return f'correct the file, or say the type of the column: --stream-schema "{name} string"'

    @abstractmethod
    def _inferred(self, file: Path) -> pa.Schema:
        """Columns of the first file: types that were told, else those of its first block."""

    @abstractmethod
    def _read(self, file: Path) -> Iterator[pa.RecordBatch]:
        """The rows of a file in the schema of all."""


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def _distinct(names: Sequence[str], file: Path) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SchemaError(f"{file} has {names.count(twice)} columns named {twice!r}: rename all but one")


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


# ---------------------------------------------------------------------------------------------------------- CSV


class CsvFiles(TextFiles):
    """Comma- or tab-separated values with the names of the columns in the first row.

    A field with nothing in it is null, a quoted one ("") an empty text. No other word means null.
    """

    def _inferred(self, file: Path) -> pa.Schema:
        first = self._first(file, self._types)
        schema = first.schema
        _distinct(schema.names, file)
        numbers = [each.name for each in schema if _is_number(each.type) and each.name not in self._types]
        as_text = self._first(file, {**self._types, **dict.fromkeys(numbers, pa.string())})
        stay = {name for name in numbers if pc.any(pc.match_substring_regex(as_text[name], _NOT_A_NUMBER)).as_py()}
        stay |= {each.name for each in schema if pa.types.is_null(each.type)}
        return pa.schema([pa.field(each.name, pa.string() if each.name in stay else each.type) for each in schema])

    def _first(self, file: Path, types: Mapping[str, pa.DataType]) -> pa.RecordBatch:
        """The rows of the first block."""
        try:
            with pa.input_stream(str(file)) as bytes_in, self._opened(bytes_in, types) as reader:
                return next(iter(reader), pa.RecordBatch.from_pylist([], schema=reader.schema))
        except _READ_ERRORS as error:
            raise self._unreadable(file, error, None) from error

    def _read(self, file: Path) -> Iterator[pa.RecordBatch]:
        names: list[str] | None = None
        try:
            with (
                pa.input_stream(str(file)) as bytes_in,
                self._opened(bytes_in, {each.name: each.type for each in self.schema}) as reader,
            ):
                names = reader.schema.names
                if sorted(names) != sorted(self.schema.names):
                    raise SchemaError(
                        f"{file} has the columns {', '.join(names)}, but {self._files[0]} has "
                        f"{', '.join(self.schema.names)}; all files of a folder must have the same columns"
                    )
                for batch in reader:
                    yield batch.select(self.schema.names)
        except _READ_ERRORS as error:
            raise self._unreadable(file, error, names) from error

    def _opened(self, bytes_in: pa.NativeFile, types: Mapping[str, pa.DataType]) -> pa.csv.CSVStreamingReader:
        return pa.csv.open_csv(
            bytes_in,
            # With several threads errors would not say in which row they are.
            read_options=pa.csv.ReadOptions(block_size=self._block_bytes, use_threads=False),
            parse_options=pa.csv.ParseOptions(delimiter="\t" if self._tabs else ",", newlines_in_values=True),
            convert_options=pa.csv.ConvertOptions(
                column_types=dict(types),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )

    def _unreadable(self, file: Path, error: Exception, names: Sequence[str] | None) -> StoreError:
        said = str(error)
        if "straddl" in said:
            return StoreError(
                f"{file} has a row of more than {self._block_bytes:,} bytes; --memory allows rows of a "
                f"{BLOCK_PART}th of it, {MOST_BLOCK_BYTES:,} bytes at most; is a quote missing somewhere?"
            )
        found = _NOT_FITTING.match(said)
        if found is None:
            return StoreError(f"{file} cannot be read: {said}")
        column = int(found[1])
        if names is None:
            names = self._header(file)
        name = names[column] if column < len(names) else f"number {column + 1}"
        kind = self.schema.field(name).type if name in self.schema.names else self._types.get(name)
        return StoreError(
            f"{file}, row {int(found[2]):,} (the header is row 1): {_cut(found[3])} in column {name!r}, which is read "
            f"as {kind}; {self._remedy(name)}"
        )

    def _header(self, file: Path) -> list[str]:
        with pa.input_stream(str(file)) as bytes_in, self._opened(bytes_in, {}) as reader:
            return list(reader.schema.names)


# --------------------------------------------------------------------------------------------------------- JSON


class JsonFiles(TextFiles):
    """One JSON object per line. A field that an object lacks is null; one that nobody has told of is an error."""

    def _inferred(self, file: Path) -> pa.Schema:
        block = next(self._blocks_of(file), (1, b""))
        found = self._parsed(file, *block, self._types, "infer")
        fields = []
        for name in self._names(block[1], found.column_names):
            kind = self._types[name] if name in self._types else _kept(found[name].type)
            if name not in self._types and pa.types.is_floating(kind) and _is_beyond_int64(found[name]):
                # As a decimal whole numbers keep the digits that a double would lose.
                kind = _WHOLE if _fits(block[1], name, _WHOLE) else kind
            fields.append(pa.field(name, kind))
        return pa.schema(fields)

    def _names(self, block: bytes, found: list[str]) -> list[str]:
        """Columns in the order of the file: what was told of and is not there is no column, unless the user says so."""
        try:
            there = _table_of(block, pa.schema([]), "infer").column_names
        except pa.ArrowException:
            return found
        return [*there, *(name for name in self._given if name not in there)]

    def _read(self, file: Path) -> Iterator[pa.RecordBatch]:
        types = {each.name: each.type for each in self.schema}
        for first_line, block in self._blocks_of(file):
            table = self._parsed(file, first_line, block, types, "error")
            yield from table.combine_chunks().to_batches()

    def _parsed(
        self, file: Path, first_line: int, block: bytes, types: Mapping[str, pa.DataType], unexpected: str
    ) -> pa.Table:
        """The rows of a block, in these types as far as they are known; an error names the line."""
        try:
            return _rows(block, types, unexpected)
        except (pa.ArrowException, UnicodeDecodeError) as error:
            for number, line in enumerate(block.splitlines(keepends=True), first_line):
                try:
                    if line.strip():
                        _rows(line, types, unexpected)
                except (pa.ArrowException, UnicodeDecodeError) as at_line:
                    raise self._refused(file, number, line, types, at_line) from at_line
            raise StoreError(f"{file} from line {first_line:,} on cannot be read: {error}") from error

    def _refused(
        self, file: Path, number: int, line: bytes, types: Mapping[str, pa.DataType], error: Exception
    ) -> StoreError:
        """A line that does not fit, with the remedy."""
        text = line.decode("utf-8", "replace").strip()
        shown = _cut(text)
        place = f"{file}, line {number:,}"
        if number == 1 and text.startswith("["):
            return StoreError(
                f"{file} is a JSON array; one object per line is wanted: convert it with jq -c '.[]' and try again"
            )
        said = str(error).removeprefix("JSON parse error: ").removesuffix(" in row 0")
        if "unexpected field" in said:
            known = ", ".join(self.schema.names)
            return StoreError(
                f"{place} has a field that the lines before had not ({known}): {shown}; name it and its type in "
                '--stream-schema "NAME TYPE", or take it out'
            )
        # A line that is no object at all fits no column.
        columns = types.items() if _is_object(text) else ()
        name = next((name for name, kind in columns if not _fits(line, name, kind)), None)
        if name is None:
            return StoreError(f"{place}: {said}: {shown}; correct the file: one JSON object per line is wanted")
        return StoreError(
            f"{place}: the value of {name!r}, which is read as {types[name]}, does not fit: {shown}; "
            f"{self._remedy(name)}"
        )

    def _blocks_of(self, file: Path) -> Iterator[tuple[int, bytes]]:
        """Whole lines, about a block of them at a time, and the number of the first."""
        line = 1
        rest = b""
        try:
            with pa.input_stream(str(file)) as bytes_in:
                while True:
                    read = bytes_in.read(self._block_bytes)
                    whole, end, left = (rest + read).rpartition(b"\n") if read else (rest, b"", b"")
                    rest = left
                    block = whole + end
                    if block.strip(b"\xef\xbb\xbf \t\r\n"):
                        yield line, block
                    line += block.count(b"\n")
                    if not read:
                        return
                    if len(rest) > MOST_BLOCK_BYTES:
                        raise StoreError(
                            f"{file}, line {line:,} is longer than {MOST_BLOCK_BYTES:,} bytes; one JSON object per "
                            "line is wanted"
                        )
        except _READ_ERRORS as error:
            raise StoreError(f"{file} cannot be read: {error}") from error


def _rows(lines: bytes, types: Mapping[str, pa.DataType], unexpected: str) -> pa.Table:
    # Arrow does not look whether texts are UTF-8.
    str(lines, "utf-8")
    table = _table_of(lines, pa.schema([(name, _as_in_json(kind)) for name, kind in types.items()]), unexpected)
    return pa.table({name: table[name].cast(types.get(name, table[name].type)) for name in table.column_names})


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _fits(lines: bytes, name: str, kind: pa.DataType) -> bool:
    """Whether all values of one column are of a type."""
    try:
        _rows(lines, {name: kind}, "ignore")
    except pa.ArrowException:
        return False
    except UnicodeDecodeError:
        # The line is at fault, no column of it.
        return True
    return True


def _table_of(lines: bytes, schema: pa.Schema, unexpected: str) -> pa.Table:
    if not lines.strip():
        return schema.empty_table()
    return pa.json.read_json(
        io.BytesIO(lines),
        read_options=pa.json.ReadOptions(use_threads=False, block_size=len(lines) + 1),
        parse_options=pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
    )


def _as_in_json(kind: pa.DataType) -> pa.DataType:
    """The type in which a value stands in JSON: dates and times are texts there."""
    is_text = pa.types.is_date(kind) or pa.types.is_time(kind) or pa.types.is_fixed_size_binary(kind)
    return pa.string() if is_text else kind


def _kept(kind: pa.DataType) -> pa.DataType:
    """The type that changes no value of an inferred one: a text stays a text, and one never seen may be one."""
    if pa.types.is_timestamp(kind) or pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_kept(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _kept(each.type)) for each in kind])
    return kind


def _is_beyond_int64(column: pa.ChunkedArray) -> bool:
    largest = pc.max(pc.abs(column)).as_py()
    return largest is not None and largest >= 2.0**63
