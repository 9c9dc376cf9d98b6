"""Synoptic cloud reports of the archive NDP-026B: fixed-width lines of 56 characters, read and written.

The layout is inferred from the sister archive NDP-026C, whose first twenty fields add up to 56 characters. Since no
file of NDP-026B could be read here, only what a join relies on is checked against limits: time, latitude and
longitude. Any other field may hold any number that fits.

The papers join on longitude (hundredths of a degree, 0 to 36000, many to many): the reports of April and
August are the master data, those of December the stream.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semistream.errors import StoreError

KEY = "lon"
MASTER_MONTHS = (4, 8)
STREAM_MONTHS = (12,)
LINE_CHARACTERS = 56
_READ_BYTES = 4 << 20
MONTH_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_FILE_NAME = re.compile(rf"({'|'.join(MONTH_NAMES)})\d\d", re.IGNORECASE)

#: A block of lines, one row for each column of the file: what a field's characters are read from.
Characters: TypeAlias = npt.NDArray[np.uint8]
Bools: TypeAlias = npt.NDArray[np.bool_]
Int64s: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Field:
    """A field of the line; `first` counts columns from 1, as the archive's description does."""

    name: str
    first: int
    width: int
    type: pa.DataType
    missing: int | None = None
    low: int | None = None
    high: int | None = None

    @property
    def columns(self) -> slice:
        return slice(self.first - 1, self.first - 1 + self.width)


_CLOCK = (
    Field("yr", 1, 2, pa.int16(), low=0, high=99),
    Field("mn", 3, 2, pa.int8(), low=1, high=12),
    Field("dy", 5, 2, pa.int8(), low=1, high=31),
    Field("hr", 7, 2, pa.int8(), low=0, high=23),
)
FIELDS = (
    Field("ib", 9, 1, pa.int8()),
    Field("lat", 10, 5, pa.int16(), low=-9000, high=9000),
    Field("lon", 15, 5, pa.int32(), low=0, high=36000),
    Field("id", 20, 5, pa.int32()),
    Field("lo", 25, 1, pa.int8()),
    Field("ww", 26, 2, pa.int8(), missing=-1),
    Field("n", 28, 1, pa.int8()),
    Field("nh", 29, 2, pa.int8(), missing=-1),
    Field("h", 31, 2, pa.int8(), missing=-1),
    Field("cl", 33, 2, pa.int8(), missing=-1),
    Field("cm", 35, 2, pa.int8(), missing=-1),
    Field("ch", 37, 2, pa.int8(), missing=-1),
    Field("am", 39, 3, pa.int16(), missing=900),
    Field("ah", 42, 3, pa.int16(), missing=900),
    Field("um", 45, 1, pa.int8(), missing=9),
    Field("uh", 46, 1, pa.int8(), missing=9),
    Field("ic", 47, 2, pa.int8()),
    Field("sa", 49, 4, pa.int16()),
    Field("ri", 53, 4, pa.int16()),
)
SCHEMA = pa.schema(
    [pa.field("time", pa.timestamp("us", tz="UTC"))] + [pa.field(field.name, field.type) for field in FIELDS]
)

#: Bytes of a tuple of both tables in the papers, more than twice the line. How they came about is not said.
TUPLE_BYTES = 128
_LINE_BYTES = TUPLE_BYTES - sum(column.type.bit_width for column in SCHEMA) // 8
LINE = "line"
#: the columns of a report and its line, with as many blanks behind it as make it the papers' tuple
WIDE_SCHEMA = SCHEMA.append(pa.field(LINE, pa.binary(_LINE_BYTES), nullable=False))


class _BadField(Exception):
    """Which lines of a block are wrong, and in which field."""

    def __init__(self, field: Field, rows: Bools) -> None:
        super().__init__(field.name)
        self.field = field
        self.row = int(np.argmax(rows))


def parse(characters: Characters) -> pa.RecordBatch:
    """Reports from lines that are known to be 56 characters long; `characters[c]` is column c + 1 of them all."""
    year, month, day, hour = (_numbers(field, characters)[0] for field in _CLOCK)
    # The archive ends in 1991; two digits below 50 would be a later one.
    months = ((year + np.where(year < 50, 2000, 1900)) - 1970) * 12 + month - 1
    date = months.astype("datetime64[M]").astype("datetime64[D]") + (day - 1)
    in_month = date.astype("datetime64[M]").astype(np.int64) == months
    if not in_month.all():
        raise _BadField(_CLOCK[2], ~in_month)
    moment = (date.astype(np.int64) * 24 + hour) * 3_600_000_000
    columns = [pa.array(moment).cast(SCHEMA.field("time").type)]
    for field in FIELDS:
        values, blank = _numbers(field, characters)
        absent = blank if field.missing is None else blank | (values == field.missing)
        columns.append(pa.array(values.astype(field.type.to_pandas_dtype()), mask=absent))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _numbers(field: Field, characters: Characters) -> tuple[Int64s, Bools]:
    """Right-justified numbers, and which of them are blank. Blanks, one minus sign, digits to the field's end."""
    block = characters[field.columns]
    count = block.shape[1]
    values = np.zeros(count, dtype=np.int64)
    begun, negative, bad = (np.zeros(count, dtype=np.bool_) for _ in range(3))
    for column in block:
        digit = column - np.uint8(ord("0"))
        is_digit = digit < 10
        is_minus = column == ord("-")
        bad |= ~is_digit & (begun | ~(is_minus | (column == ord(" "))))
        values = np.where(is_digit, values * 10 + digit, values)
        negative |= is_minus
        begun |= is_digit | is_minus
    bad |= begun & (block[-1] == ord("-"))
    np.negative(values, out=values, where=negative)
    if field.low is not None and field.high is not None:
        bad |= ~begun | (values < field.low) | (values > field.high)
    if bad.any():
        raise _BadField(field, bad)
    return values, ~begun


def write_lines(reports: pa.RecordBatch) -> bytes:
    """The reports as the archive's lines: what `parse` reads."""
    time = reports.column("time").cast(pa.int64()).to_numpy() // 3_600_000_000
    date = (time // 24).astype("datetime64[D]")
    month = date.astype("datetime64[M]")
    clock = (
        (month.astype(np.int64) // 12 + 1970) % 100,
        month.astype(np.int64) % 12 + 1,
        (date - month.astype("datetime64[D]")).astype(np.int64) + 1,
        time % 24,
    )
    text = np.full((LINE_CHARACTERS + 1, reports.num_rows), ord(" "), dtype=np.uint8)
    for field, numbers in zip(_CLOCK, clock, strict=True):
        text[field.columns] = np.stack((numbers // 10, numbers % 10)).astype(np.uint8) + ord("0")
    for field in FIELDS:
        column = reports.column(field.name)
        filled = column if field.missing is None else pc.fill_null(column, pa.scalar(field.missing, field.type))
        _justify(filled.to_numpy().astype(np.int64), text[field.columns])
    text[LINE_CHARACTERS] = ord("\n")
    return text.T.tobytes()


def widened(reports: pa.RecordBatch) -> pa.RecordBatch:
    """The reports as tuples of the papers' size: what a join carries along is then as heavy as it was there."""
    lines = np.frombuffer(write_lines(reports), dtype=np.uint8).reshape(reports.num_rows, LINE_CHARACTERS + 1)
    text = np.full((reports.num_rows, _LINE_BYTES), ord(" "), dtype=np.uint8)
    text[:, :LINE_CHARACTERS] = lines[:, :LINE_CHARACTERS]
    line = pa.Array.from_buffers(WIDE_SCHEMA.field(LINE).type, reports.num_rows, [None, pa.py_buffer(text)])
    return pa.RecordBatch.from_arrays([*reports.columns, line], schema=WIDE_SCHEMA)


def _justify(numbers: Int64s, places: Characters) -> None:
    """Write the numbers right-justified into columns that hold blanks."""
    rest = np.abs(numbers)
    unsigned = numbers < 0
    for left, place in zip(range(len(places))[::-1], places[::-1], strict=True):
        # A digit where there is something left to write, and in the last column in any case.
        more = (rest > 0) | (left == len(places) - 1)
        sign = ~more & unsigned
        place[...] = np.where(sign, ord("-"), place)
        unsigned &= ~sign
        tens = rest // 10
        place[...] = np.where(more, rest - tens * 10 + ord("0"), place)
        rest = tens


def read_file(path: Path) -> Iterator[pa.RecordBatch]:
    """The reports of one file, plain or compressed with gzip, bzip2, lz4 or zstd (by the name's ending)."""
    if path.suffix == ".Z":
        raise StoreError(f"{path} is compressed with `compress`, which is not read here; unpack it: uncompress {path}")
    before, left = 0, b""
    with pa.input_stream(str(path), compression="detect") as source:
        while block := _read(path, source):
            whole, newline, left = (left + block).rpartition(b"\n")
            if newline:
                yield _report_batch(path, before, whole)
                before += whole.count(b"\n") + 1
    if left:
        yield _report_batch(path, before, left)


def _read(path: Path, source: pa.NativeFile) -> bytes:
    try:
        return bytes(source.read(_READ_BYTES))
    except (OSError, pa.ArrowInvalid) as error:
        raise StoreError(f"{path} cannot be read to its end: {error}. Fetch it anew") from error


def _report_batch(path: Path, before: int, lines: bytes) -> pa.RecordBatch:
    """The reports of these lines; `before` lines of the file come before them."""
    text = np.frombuffer(lines + b"\n", dtype=np.uint8)
    ends = np.flatnonzero(text == ord("\n"))
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts - (text[np.maximum(ends - 1, 0)] == ord("\r"))
    wrong = lengths != LINE_CHARACTERS
    if wrong.any():
        row = int(np.argmax(wrong))
        raise StoreError(
            f"{path}, line {before + row + 1}: {lengths[row]} characters; a report has {LINE_CHARACTERS}. "
            "Is this a file of NDP-026B?"
        )
    if (np.diff(starts) == ends[0] + 1).all():
        characters = np.ascontiguousarray(text.reshape(len(ends), -1)[:, :LINE_CHARACTERS].T)
    else:
        characters = text[starts + np.arange(LINE_CHARACTERS)[:, None]]
    try:
        return parse(characters)
    except _BadField as bad:
        found = characters[bad.field.columns, bad.row].tobytes().decode("ascii", "replace")
        limits = "" if bad.field.low is None else f" from {bad.field.low} to {bad.field.high}"
        raise StoreError(
            f"{path}, line {before + bad.row + 1}: {bad.field.name} is {found!r}, {bad.field.width} characters from "
            f"column {bad.field.first} on; allowed is a right-justified number{limits}. Mend or remove the line"
        ) from None


def month_files(folder: Path, months: Sequence[int]) -> list[Path]:
    """The files of those months, by name: APR82L is of April 1982."""
    if not folder.is_dir():
        raise StoreError(f"{folder} is not a folder; give the one that holds the archive's monthly files")
    wanted = {MONTH_NAMES[month - 1] for month in months}
    named = [path for path in folder.iterdir() if path.is_file() and _FILE_NAME.match(path.name)]
    chosen = sorted(path for path in named if path.name[:3].lower() in wanted)
    if not chosen:
        raise StoreError(
            f"{folder} holds no file of the months {', '.join(sorted(wanted))}; files are known by names that begin "
            "with month and year, such as APR82L"
        )
    return chosen


def read_months(folder: str | Path, months: Sequence[int]) -> pa.RecordBatchReader:
    """All reports of those months in the folder (`--weather-dir`), file by file."""
    files = month_files(Path(folder), months)
    return pa.RecordBatchReader.from_batches(SCHEMA, (batch for path in files for batch in read_file(path)))
