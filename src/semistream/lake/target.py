"""What a task has to know to write its files: it is made by the driver, and travels with the task."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

#: a file of this size is worth opening, and is read by one task of Spark
FILE_BYTES = 128 << 20
#: about as many rows of usual width as readers take at once
ROW_GROUP_BYTES = 16 << 20
#: rows that wait for row groups, of all partition values together
HELD_BYTES = 64 << 20
OPEN_FILES = 64
CODEC = "zstd"


@dataclass(frozen=True)
class Target:
    """Where files go, what they are called and how rows are divided among them."""

    folder: str
    #: the rows as they are stored, an Arrow schema in its serialized form; partition columns are among them
    schema: bytes
    #: file names begin with it; a table's carries query and batch, so that files nobody wants can be told
    prefix: str = "part"
    #: other than .parquet while readers must not take the files for data
    suffix: str = ".parquet"
    partition_by: tuple[str, ...] = ()
    #: whether files hold the partition columns too, or their folders' names alone
    keeps_partition_columns: bool = False
    file_bytes: int = FILE_BYTES
    row_group_bytes: int = ROW_GROUP_BYTES
    #: at most so many bytes of rows wait; above it the largest partition values are written
    held_bytes: int = HELD_BYTES
    #: at most so many files are open; above it the oldest is closed
    open_files: int = OPEN_FILES
    wants_stats: bool = False
    #: whether there is a file, without rows, where no row came
    writes_empty: bool = False
    #: for columns that it makes smaller
    codec: str = CODEC
    #: whose rows they are, if there will be more like them: the files of an origin are encoded alike for a while
    origin: str = ""
    #: whether a finished file must outlive a power cut; that waits for the disk
    durable: bool = True

    def arrow_schema(self) -> pa.Schema:
        """`schema` as Arrow has it."""
        return pa.ipc.read_schema(pa.py_buffer(self.schema))

    def file_schema(self) -> pa.Schema:
        """The columns of the files."""
        schema = self.arrow_schema()
        if self.keeps_partition_columns:
            return schema
        return pa.schema([field for field in schema if field.name not in self.partition_by])
