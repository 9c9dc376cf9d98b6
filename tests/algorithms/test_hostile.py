"""Batches and snapshots whose bytes lie: an error of ours or of Arrow's reader, never a crash.

Everything runs in a child process, for what is looked for would end the process.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.arrow_types import ALL, FLAT

from semistream import build_pages, open_join
from semistream.engine.snapshot import FLAG_COLUMN, Snapshot
from semistream.errors import DamagedBatchError, SchemaError, SemiStreamError, StoreError
from semistream.master.memory import MemoryMaster
from semistream.testing import run_join

MASTER = pa.table({"k": np.arange(20), "m": [f"m{i}" for i in range(20)]})
#: a column of every way to reach a value: offsets of both widths, views, indices, run ends, children
SHAPES = (
    "int64",
    "bool",
    "string",
    "large_binary",
    "string_view",
    "fixed_binary",
    "list",
    "list_view",
    "struct",
    "map",
    "dictionary<int8, string>",
    "dictionary<int8, string_view>",
    "run_ends<int16, string>",
    "list_of_dictionary",
    "fixed_size_list",
)


def batch_of(name: str, rows: int = 12) -> pa.RecordBatch:
    return pa.record_batch({"k": np.arange(rows), "v": ALL[name](rows, True)})


def ipc_bytes(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def try_batch(data: bytes, operator: str) -> str:
    """How a batch fares that was read from these bytes: refused when read, refused by us, or joined."""
    try:
        batch = pa.ipc.open_stream(data).read_next_batch()
    except (pa.ArrowException, OSError, StopIteration, ValueError, KeyError, MemoryError):
        return "unreadable"
    with open_join(operator, master=MASTER, on="k", how="left", memory="1MB") as join:
        try:
            for out in (*join.push(batch), *join.drain()):
                out.validate()
        except SemiStreamError:
            return "refused"
    return "joined"


def try_master(data: bytes) -> str:
    try:
        batch = pa.ipc.open_stream(data).read_next_batch()
    except (pa.ArrowException, OSError, StopIteration, ValueError, KeyError, MemoryError):
        return "unreadable"
    try:
        with open_join("meshjoin", master=pa.Table.from_batches([batch]), on="k", memory="1MB") as join:
            run_join(join, pa.record_batch({"k": np.arange(20)}))
    except SemiStreamError:
        return "refused"
    return "joined"


def flip_all(name: str, seed: int, flips: int) -> None:
    """Flip bits of a batch's bytes, one place at a time; the counts go to standard output."""
    rng = np.random.default_rng(seed)
    data = ipc_bytes(batch_of(name))
    places = np.arange(len(data)) if len(data) <= flips else rng.choice(len(data), flips, replace=False)
    seen: dict[str, int] = {}
    for at in places:
        damaged = bytearray(data)
        damaged[at] ^= int(rng.choice([0x01, 0x10, 0x80, 0xFF]))
        for fared in (
            try_batch(bytes(damaged), ("hybridjoin", "sweepjoin", "meshjoin", "orderedjoin")[at % 4]),
            try_master(bytes(damaged)),
        ):
            seen[fared] = seen.get(fared, 0) + 1
    print(seen)


def flip_snapshot(seed: int) -> None:
    """Every byte of a snapshot, flipped once."""
    rng = np.random.default_rng(seed)
    with open_join("meshjoin", master=MASTER, on="k", how="left", memory="1MB") as join:
        list(join.push(pa.record_batch({"k": np.arange(9), "v": FLAT["string"](9, True)})))
        data = join.snapshot().to_bytes()
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= int(rng.integers(1, 256))
        try:
            Snapshot.from_bytes(bytes(damaged))
        except StoreError:
            continue
        raise AssertionError(f"byte {at} was changed and nobody saw it")
    print("all of", len(data))


def in_child(call: str) -> str:
    code = f"from tests.algorithms.test_hostile import *; {call}"
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code], capture_output=True, text=True, timeout=300, cwd=root
    )
    assert done.returncode == 0, f"{call}: exit {done.returncode}\n{done.stderr[-3000:]}"
    return done.stdout


def test_flipped_bytes_of_a_batch_crash_nothing() -> None:
    out = in_child("; ".join(f"flip_all({name!r}, {seed}, 60)" for seed, name in enumerate(SHAPES)))
    assert all(how in out for how in ("unreadable", "refused", "joined"))


def test_every_byte_of_a_snapshot_is_guarded() -> None:
    assert "all of" in in_child("flip_snapshot(6)")


def wild_offsets(kind: pa.DataType) -> pa.RecordBatch:
    """Offsets that fall, rise out of the buffer and come back to a harmless last one."""
    width = np.int64 if kind in (pa.large_string(), pa.large_binary()) else np.int32
    offsets = np.array([0, 1, 1 << 30, 2, 3], dtype=width)
    array = pa.Array.from_buffers(kind, 4, [None, pa.py_buffer(offsets), pa.py_buffer(b"abcdefgh")])
    return pa.record_batch({"k": np.arange(4), "v": array})


def wild_indices() -> pa.RecordBatch:
    indices = pa.array([0, 1 << 20, 1, 0], pa.int32())
    array = pa.DictionaryArray.from_arrays(indices, pa.array(["a", "b"]), safe=False)
    return pa.record_batch({"k": np.arange(4), "v": array})


def wild_list() -> pa.RecordBatch:
    offsets = pa.py_buffer(np.array([0, 1, 1 << 28, 2, 3], dtype=np.int32))
    array = pa.Array.from_buffers(pa.list_(pa.int64()), 4, [None, offsets], children=[pa.array(range(8))])
    return pa.record_batch({"k": np.arange(4), "v": array})


def wild_view() -> pa.RecordBatch:
    views = np.zeros(4, dtype=[("size", "<i4"), ("prefix", "S4"), ("buffer", "<i4"), ("offset", "<i4")])
    views["size"], views["buffer"], views["offset"] = 100, 0, 1 << 28
    array = pa.Array.from_buffers(pa.binary_view(), 4, [None, pa.py_buffer(views.tobytes()), pa.py_buffer(b"x" * 200)])
    return pa.record_batch({"k": np.arange(4), "v": array})


WILD = {
    "string": lambda: wild_offsets(pa.string()),
    "binary": lambda: wild_offsets(pa.binary()),
    "large_string": lambda: wild_offsets(pa.large_string()),
    "dictionary": wild_indices,
    "list": wild_list,
    "view": wild_view,
}


def refuse_wild(name: str, operator: str) -> None:
    """A wild batch is refused by name, and the join goes on with good ones."""
    batch = WILD[name]()
    with open_join(operator, master=MASTER, on="k", memory="1MB") as join:
        with pytest.raises(DamagedBatchError, match=r"column 'v' of this batch of the stream is not a valid"):
            list(join.push(batch))
        good = pa.record_batch({"k": np.arange(4), "v": pa.nulls(4, batch.schema.field("v").type)})
        assert sum(out.num_rows for out in (*join.push(good), *join.drain())) == 4


def refuse_wild_master(name: str, folder: str) -> None:
    batch = WILD[name]()
    with pytest.raises(DamagedBatchError, match="column 'v' of the master data in memory"):
        MemoryMaster(pa.Table.from_batches([batch]), "k")
    with pytest.raises(DamagedBatchError, match="column 'v' of the master data"):
        build_pages(batch, folder, on="k")
    assert not Path(folder, "CURRENT").exists()


def test_wild_offsets_and_indices_are_refused() -> None:
    algorithms = ("sweepjoin", "hybridjoin", "meshjoin", "auto")
    in_child("; ".join(f"refuse_wild({name!r}, {algorithm!r})" for algorithm in algorithms for name in WILD))


def test_wild_master_data_is_refused(tmp_path: Path) -> None:
    in_child("; ".join(f"refuse_wild_master({name!r}, {str(tmp_path / name)!r})" for name in WILD))


def test_a_snapshot_with_wild_tuples_is_refused() -> None:
    in_child("refuse_wild_snapshot()")


def refuse_wild_snapshot() -> None:
    with open_join("hybridjoin", master=MASTER, on="k", memory="1MB") as join:
        list(join.push(pa.record_batch({"k": [1], "v": ["a"]})))
        state = join.snapshot().state
    wild = Snapshot(state, pa.Table.from_batches([wild_offsets(pa.string())]))
    with open_join("hybridjoin", master=MASTER, on="k", memory="1MB") as join, pytest.raises(StoreError, match="'v'"):
        join.restore(wild)
    with pytest.raises(StoreError, match="'v'"):
        Snapshot.from_bytes(wild.to_bytes())


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({"position": 10**6}, "position"),
        ({"position": -1}, "position"),
        ({"position": "0"}, "position"),
        ({"step_number": -3}, "step_number"),
        ({"open_count": 5}, "open_count"),
        ({"open_count": None}, "open_count"),
        ({"chunks": [[10**12, 1]]}, "tuples in a chunk"),
        ({"chunks": [[0, 1]]}, "tuples in a chunk"),
        ({"chunks": [[1, 10**9]]}, "expiry"),
        ({"chunks": [1, 2]}, "chunks"),
        ({"chunks": None}, "chunks"),
    ],
)
def test_a_state_that_cannot_be_is_refused(changed: dict[str, object], wrong: str) -> None:
    with open_join("meshjoin", master=MASTER, on="k", memory="1MB") as join:
        list(join.push(pa.record_batch({"k": np.arange(9)})))
        saved = join.snapshot()
    assert saved.tuples is not None
    assert saved.tuples.num_rows == 9
    with (
        open_join("meshjoin", master=MASTER, on="k", memory="1MB") as join,
        pytest.raises(StoreError, match=f"{wrong}.*damaged"),
    ):
        join.restore(Snapshot.from_bytes(Snapshot({**saved.state, **changed}, saved.tuples).to_bytes()))


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({"waiting": [[10**9, 1]]}, "partition"),
        ({"waiting": [[0, -1]]}, "age"),
        ({"waiting": {"0": 1}}, "waiting"),
        ({"partition_pages": 0}, "partition_pages"),
    ],
)
def test_partitions_that_cannot_be_are_refused(changed: dict[str, object], wrong: str) -> None:
    with open_join("partitionjoin", master=MASTER, on="k", memory="1MB") as join:
        list(join.push(pa.record_batch({"k": np.arange(9)})))
        saved = join.snapshot()
    with (
        open_join("partitionjoin", master=MASTER, on="k", memory="1MB") as join,
        pytest.raises(StoreError, match=f"{wrong}.*damaged"),
    ):
        join.restore(Snapshot({**saved.state, **changed}, saved.tuples))


def test_a_snapshot_of_another_stream_is_refused(operator: str) -> None:
    with open_join(operator, master=MASTER, on="k", memory="1MB") as join:
        list(join.push(pa.record_batch({"k": np.arange(9)})))
        saved = join.snapshot()
    tuples = saved.tuples
    assert tuples is not None
    schema = pa.schema([("k", pa.int64()), ("v", pa.string())])
    with (
        open_join(operator, master=MASTER, on="k", memory="1MB", stream_schema=schema) as join,
        pytest.raises(SchemaError, match="open the join as it was then"),
    ):
        join.restore(saved)
    if FLAG_COLUMN in tuples.schema.names:
        bare = Snapshot(saved.state, tuples.drop_columns([FLAG_COLUMN]))
        with (
            open_join(operator, master=MASTER, on="k", memory="1MB") as join,
            pytest.raises(StoreError, match="columns"),
        ):
            join.restore(bare)
