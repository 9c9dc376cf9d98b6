"""CSV and JSON streams: the same rows as from Parquet, or an error that names the place; never a changed value."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from tests.cli.conftest import MASTER, STREAM, Invoke

from semistream.cli.streams import Stream, expected_rows, open_stream
from semistream.cli.text import LEAST_BLOCK_BYTES
from semistream.errors import ConfigError, SchemaError, StoreError
from semistream.testing import assert_same_rows, reference_join


def write_json(table: pa.Table, path: Path | str) -> None:
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()), encoding="utf-8")


def master(**columns: pa.Array) -> Path:
    pq.write_table(pa.table(columns), "m.parquet")
    return Path("m.parquet")


def opened(name: str, text: str | bytes, keys: Path, types: str | None = None, on: str = "k") -> Stream:
    Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return open_stream(Path(name), {on: on}, keys, memory_bytes=1 << 20, types=types)


def rows(stream: Stream, batch_rows: int = 1000) -> pa.Table:
    return pa.Table.from_batches(stream.batches(stream.schema.names, 0, batch_rows), stream.schema)


@pytest.mark.parametrize("ending", ["csv", "tsv", "csv.gz", "json", "jsonl", "ndjson", "jsonl.gz"])
@pytest.mark.parametrize("algorithm", ["sweepjoin", "meshjoin", "oxhybridjoin", "auto"])
def test_join_gives_the_rows_of_parquet(invoke: Invoke, ending: str, algorithm: str) -> None:
    plain = ending.removesuffix(".gz")
    if "json" in plain:
        write_json(STREAM, f"s.{plain}")
    else:
        options = pa.csv.WriteOptions(delimiter="\t" if plain == "tsv" else ",")
        pa.csv.write_csv(STREAM, f"s.{plain}", options)
    if ending != plain:
        Path(f"s.{ending}").write_bytes(gzip.compress(Path(f"s.{plain}").read_bytes()))
    words = ("--master", "r.parquet", "--on", "k", "--memory", "4MB", "--algorithm", algorithm)
    done = invoke("join", "--stream", f"s.{ending}", *words, "--out", "x.parquet")
    assert done.exit_code == 0, done.output
    assert_same_rows(pq.read_table("x.parquet"), reference_join(STREAM, MASTER, "k"))


def test_explain_and_tune_read_text(invoke: Invoke) -> None:
    pa.csv.write_csv(STREAM, "s.csv")
    invoke("master", "build", "r.pages", "--from", "r.parquet", "--on", "k")
    common = ("--stream", "s.csv", "--master", "r.pages", "--on", "k", "--memory", "1MB")
    done = invoke("explain", *common, "--run", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["measured"]["tuples"] == STREAM.num_rows
    tuned = invoke("tune", "sweepjoin", *common, "--no-runs", "--tuples", 2000, "--json")
    assert tuned.exit_code == 0, tuned.output


def test_a_folder_of_files_in_any_order_of_columns(invoke: Invoke) -> None:
    Path("ss/.hidden").mkdir(parents=True)
    pa.csv.write_csv(STREAM.slice(0, 900), "ss/a.csv")
    pa.csv.write_csv(STREAM.slice(900).select(["city", "k", "n"]), "ss/b.csv")
    Path("ss/_SUCCESS").touch()
    Path("ss/.hidden/c.json").write_text("no json")
    stream = open_stream(Path("ss"), {"k": "k"}, Path("r.parquet"), memory_bytes=1 << 20)
    assert_same_rows(rows(stream), STREAM)
    pa.csv.write_csv(STREAM.rename_columns(["k", "m", "city"]), "ss/c.csv")
    with pytest.raises(SchemaError, match=r"c\.csv has the columns k, m, city.*must have the same columns"):
        rows(open_stream(Path("ss"), {"k": "k"}, Path("r.parquet"), memory_bytes=1 << 20))


def test_formats_are_named_or_told_by_the_endings(invoke: Invoke) -> None:
    def stream_of(path: str, **more: str) -> Stream:
        return open_stream(Path(path), {"k": "k"}, Path("r.parquet"), memory_bytes=1 << 20, **more)  # type: ignore[arg-type]

    pa.csv.write_csv(STREAM, "export.txt")
    assert_same_rows(rows(stream_of("export.txt", format_name="csv")), STREAM)
    Path("mixed").mkdir()
    pa.csv.write_csv(STREAM, "mixed/a.csv")
    write_json(STREAM, "mixed/b.json")
    with pytest.raises(ConfigError, match=r"several formats \(csv, json\)"):
        stream_of("mixed")
    assert_same_rows(rows(stream_of("mixed", format_name="json")), STREAM)
    with pytest.raises(ConfigError, match="allowed are parquet, csv, tsv, json"):
        stream_of("mixed", format_name="xml")
    with pytest.raises(ConfigError, match="has types of its own"):
        stream_of("s.parquet", types="k long")
    Path("parts/day=1").mkdir(parents=True)
    pa.csv.write_csv(STREAM, "parts/day=1/a.csv")
    with pytest.raises(ConfigError, match="stands for a column"):
        stream_of("parts")
    Path("none").mkdir()
    with pytest.raises(StoreError, match="no CSV file"):
        stream_of("none", format_name="csv")


@pytest.mark.parametrize("name", ["s.csv", "s.jsonl"])
def test_values_may_hold_what_separates_them(invoke: Invoke, name: str) -> None:
    """Wherever a block ends: also within quotes."""
    texts = ["a\nb", 'say "no"', ",;\t", "Łódź 🚲", "", "\\n", "{}", None]
    table = pa.table({"k": range(20_000), "v": pa.array(texts * 2_500), "w": pa.array(["x\ny" * 7] * 20_000)})
    if name == "s.csv":
        pa.csv.write_csv(table, name)
    else:
        write_json(table, name)
    stream = open_stream(Path(name), {"k": "k"}, Path("r.parquet"), memory_bytes=1)
    assert rows(stream, 3000).to_pylist() == table.to_pylist()


@pytest.mark.parametrize(
    ("kind", "written", "value"),
    [
        (pa.string(), "007", "007"),
        (pa.dictionary(pa.int32(), pa.string()), "007", "007"),
        (pa.int64(), "007", 7),
        (pa.int16(), "7", 7),
        (pa.date32(), "2026-01-31", pa.scalar("2026-01-31").cast(pa.date32()).as_py()),
        (pa.decimal128(6, 2), "12.5", pa.scalar("12.50").cast(pa.decimal128(6, 2)).as_py()),
        (pa.timestamp("us"), "2026-01-31 10:00:00", pa.scalar("2026-01-31 10:00:00").cast(pa.timestamp("us")).as_py()),
    ],
)
@pytest.mark.parametrize("name", ["s.csv", "s.jsonl"])
def test_the_key_has_the_type_of_r(invoke: Invoke, kind: pa.DataType, written: str, value: object, name: str) -> None:
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    keys = master(k=pa.array([value], plain).cast(kind))
    said = written.lstrip("0") if pa.types.is_integer(plain) or pa.types.is_decimal(plain) else f'"{written}"'
    text = f"k,v\n{written},x\n" if name == "s.csv" else f'{{"k": {said}, "v": "x"}}\n'
    found = rows(opened(name, text, keys))
    assert found.to_pylist() == [{"k": value, "v": "x"}]
    assert found.schema.field("k").type == plain


def test_values_are_not_changed_by_inference(invoke: Invoke) -> None:
    text = 'k,zip,id,price,day,empty,quoted\n1,01234,99999999999999999999,1.5,2026-01-31,,""\n2,999,1,NA,2026-02-01,,\n'
    found = rows(opened("s.csv", text, Path("r.parquet")))
    assert found.to_pylist() == [
        {**first, "k": number}
        for number, first in (
            (1, {"zip": "01234", "id": "99999999999999999999", "price": "1.5", "empty": None, "quoted": ""}),
            (2, {"zip": "999", "id": "1", "price": "NA", "empty": None, "quoted": None}),
        )
        for first["day"] in (pa.scalar(["2026-01-31", "2026-02-01"][number - 1]).cast(pa.date32()).as_py(),)
    ]
    lines = (
        '{"at": "2026-01-31T10:00:00", "k": 1, "id": 99999999999999999999, "deep": {"at": "2026-01-31", "n": [1]}}\n'
    )
    stream = opened("s.jsonl", lines, Path("r.parquet"))
    assert stream.schema.names == ["at", "k", "id", "deep"]
    assert rows(stream).to_pylist() == [json.loads(lines)]


def test_types_that_are_said(invoke: Invoke) -> None:
    said = "zip string, price decimal(10,2), `paid at` timestamp"
    text = "k,zip,price,paid at\n1,999,1.5,2026-01-31 10:00:00\n"
    schema = opened("s.csv", text, Path("r.parquet"), said).schema
    assert schema.field("zip").type == pa.string()
    assert schema.field("price").type == pa.decimal128(10, 2)
    assert schema.field("paid at").type == pa.timestamp("us")
    with pytest.raises(SchemaError, match=r"'zap', which s\.csv has not; it has k, zip"):
        opened("s.csv", text, Path("r.parquet"), "zap string")
    # An object may lack a field, so one that the first lines have not can be told of.
    lines = '{"k": 1}\n{"k": 2, "late": 3}\n'
    assert rows(opened("s.jsonl", lines, Path("r.parquet"), "late long")).to_pylist()[1] == {"k": 2, "late": 3}


#: more lines than a block has
MANY = LEAST_BLOCK_BYTES // 2


@pytest.mark.parametrize(
    ("name", "head", "line", "words"),
    [
        ("s.csv", "k,v", "x7,1", [r"row \d", "'x7'", "'k'", "read as int64", "the type of the key in R"]),
        ("s.csv", "k,v", "7,x7", [r"row \d", "'x7'", "'v'", 'say the type of the column: --stream-schema "v string"']),
        ("s.csv", "k,v", "7", ["Expected 2 columns"]),
        ("s.csv", "k,v", "7," + "y" * 2 * LEAST_BLOCK_BYTES, ["row of more than"]),
        ("s.jsonl", "", '{"k": "x7", "v": 1}', [r"line \d", "'k', which is read as int64", "x7", "the key in R"]),
        ("s.jsonl", "", '{"k": 7.5, "v": 1}', [r"line \d", "'k', which is read as int64", "7.5"]),
        ("s.jsonl", "", '{"k": 7, "v": "x7"}', [r"line \d", "'v'", "x7", '--stream-schema "v string"']),
        ("s.jsonl", "", '{"k": 7, "w": 1}', [r"line \d", "a field that the lines before had not", '"w"']),
        ("s.jsonl", "", '{"k": 7, "v": 1', [r"line \d", "one JSON object per line"]),
    ],
)
def test_a_later_value_that_does_not_fit(invoke: Invoke, name: str, head: str, line: str, words: list[str]) -> None:
    good = "1,2" if head else '{"k": 1, "v": 2}'
    stream = opened(name, "\n".join([*([head] if head else []), *[good] * MANY, line, good]) + "\n", Path("r.parquet"))
    with pytest.raises(StoreError) as found:
        rows(stream)
    number = MANY + (2 if head else 1)
    said = str(found.value)
    for each in [name, *words]:
        assert each.replace(r"\d", f"{number:,}") in said


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("s.csv", "", "Empty CSV"),
        ("s.csv", "k,v,v\n1,2,3\n", "2 columns named 'v'"),
        ("s.csv", b"k,v\n1,\xff\n", None),
        ("s.jsonl", '[{"k": 1}]', "is a JSON array"),
        ("s.jsonl", b'{"k": 1, "v": "\xff"}\n', "line 1"),
        ("s.jsonl", '{"k": 1, "k": 2}\n', "line 1"),
    ],
)
def test_files_that_are_no_such_text(invoke: Invoke, name: str, text: str | bytes, words: str | None) -> None:
    if words is None:
        # Bytes that are no text are kept as they are.
        assert opened(name, text, Path("r.parquet")).schema.field("v").type == pa.binary()
        return
    with pytest.raises((StoreError, SchemaError), match=words):
        opened(name, text, Path("r.parquet"))


def test_a_packed_file_that_is_cut_short_is_an_error(invoke: Invoke) -> None:
    packed = gzip.compress("\n".join(["k,v", *(f"{i},{i * 7919 % 10007}" for i in range(50_000))]).encode())
    with pytest.raises(StoreError, match=r"s\.csv\.gz"):
        rows(opened("s.csv.gz", packed[: len(packed) // 2], Path("r.parquet")))


@pytest.mark.parametrize(("name", "text"), [("s.csv", "k,v\n"), ("s.jsonl", "\n"), ("s.jsonl", "")])
def test_nothing_in_it(invoke: Invoke, name: str, text: str) -> None:
    stream = opened(name, text, Path("r.parquet"))
    assert rows(stream).num_rows == 0
    assert expected_rows(stream) == 0


@pytest.mark.parametrize("name", ["s.csv", "s.jsonl"])
def test_a_key_that_is_not_there(invoke: Invoke, name: str) -> None:
    text = "key,v\n1,2\n" if name == "s.csv" else '{"key": 1, "v": 2}\n'
    Path(name).write_text(text)
    done = invoke("join", "--stream", name, "--master", "r.parquet", "--on", "k", "--out", "x.parquet")
    assert done.exit_code == 2
    assert "the stream has no column 'k'" in done.stderr


@pytest.mark.parametrize("name", ["s.csv", "s.jsonl"])
def test_batches_have_the_size_that_is_asked_for(invoke: Invoke, name: str) -> None:
    table = pa.table({"k": range(20_000), "v": ["some text"] * 20_000})
    if name == "s.csv":
        pa.csv.write_csv(table, name)
    else:
        write_json(table, name)
    stream = open_stream(Path(name), {"k": "k"}, Path("r.parquet"), memory_bytes=1)
    sizes = [batch.num_rows for batch in stream.batches(["k"], 100, 7000)]
    assert sizes == [7000, 7000, 5900]
    assert expected_rows(stream) == pytest.approx(20_000, rel=0.2)
    assert 1 <= stream.rows_within(1000, 7000) < 100


def test_spark_refuses_text(invoke: Invoke) -> None:
    pa.csv.write_csv(STREAM, "s.csv")
    words = ("--master", "r.parquet", "--on", "k", "--out", "x.parquet", "--engine", "spark")
    done = invoke("join", "--stream", "s.csv", *words)
    assert done.exit_code == 2
    assert "--engine spark reads streams of Parquet only, and s.csv is csv" in done.stderr


def test_memory_does_not_grow_with_the_text(invoke: Invoke) -> None:
    """Reading 60 MB of text takes no more than reading the first of it."""
    program = (
        "import sys; from pathlib import Path; from semistream.cli.streams import open_stream\n"
        "import resource, pyarrow as pa\n"
        "stream = open_stream(Path(sys.argv[1]), {'k': 'k'}, Path('r.parquet'), memory_bytes=1 << 20)\n"
        "list(zip(range(2), stream.batches(['k'], 0, 1000)))\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "print(sum(batch.num_rows for batch in stream.batches(['k'], 0, 1000)))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    for name, line in (("s.csv", "123456,abcdefghijklmnopqrstuvwxyz"), ("s.jsonl", '{"k": 123456, "v": "abcdefgh"}')):
        lines = 60_000_000 // len(line)
        with open(name, "w") as file:
            file.write("k,v\n" if name == "s.csv" else "")
            for _ in range(0, lines, 1000):
                file.write(f"{line}\n" * 1000)
        done = subprocess.run([sys.executable, "-c", program, name], capture_output=True, text=True, check=True)
        count, grown_kb = map(int, done.stdout.split())
        assert count >= lines
        assert grown_kb < 20_000
