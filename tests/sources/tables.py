"""The same small table in every kind of source, changed by the same few statements."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.sources.servers import MariaDb, Postgres

#: k is no unique key: 3 has two rows
FIRST = [(1, "one", 10), (2, "two", 20), (3, "three", 30), (3, "drei", 31), (4, "vier'\"`ä", 40), (5, None, 50)]
SCHEMA = pa.schema([("k", pa.int64()), ("name", pa.string()), ("changed", pa.int64())])
Row = tuple[int, str | None, int]


class Table(ABC):
    """Rows (k, name, changed) somewhere; `changed` is the watermark."""

    #: whether changes come row by row, so that deletes are seen
    tells_deletes = False

    @property
    @abstractmethod
    def address(self) -> str:
        """Where `open_source` finds it."""

    @abstractmethod
    def insert(self, *rows: Row) -> None: ...

    @abstractmethod
    def delete(self, key: int) -> None: ...

    def update(self, key: int, name: str, changed: int) -> None:
        """All rows of a key become one."""
        self.delete(key)
        self.insert((key, name, changed))


class SqlTable(Table):
    """What all databases do alike."""

    def __init__(self, name: str = "odd name.t") -> None:
        self.name = name

    @abstractmethod
    def execute(self, *statements: str) -> None: ...

    @property
    @abstractmethod
    def quoted(self) -> str: ...

    def create(self, kinds: str = "k BIGINT, name VARCHAR(100), changed BIGINT NOT NULL") -> None:
        self.execute(f"CREATE TABLE {self.quoted} ({kinds})")
        self.insert(*FIRST)

    def insert(self, *rows: Row) -> None:
        self.execute(*(f"INSERT INTO {self.quoted} VALUES ({', '.join(map(_literal, row))})" for row in rows))

    def delete(self, key: int) -> None:
        self.execute(f"DELETE FROM {self.quoted} WHERE k = {key}")

    def update(self, key: int, name: str, changed: int) -> None:
        self.execute(f"UPDATE {self.quoted} SET name = {_literal(name)}, changed = {changed} WHERE k = {key}")


def _literal(value: Any) -> str:
    return "NULL" if value is None else "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


class SqliteTable(SqlTable):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.path = folder / "a file.db"
        self.create()

    @property
    def address(self) -> str:
        return f'sqlite:{self.path}?table="{self.name}"'

    @property
    def quoted(self) -> str:
        return f'"{self.name}"'

    def execute(self, *statements: str) -> None:
        connection = sqlite3.connect(self.path)
        for statement in statements:
            connection.execute(statement)
        connection.commit()
        connection.close()


class DuckdbTable(SqlTable):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.path = folder / "a file.duckdb"
        self.create()

    @property
    def address(self) -> str:
        return f'duckdb:{self.path}?table=main."{self.name}"'

    @property
    def quoted(self) -> str:
        return f'"{self.name}"'

    def execute(self, *statements: str) -> None:
        import duckdb

        with duckdb.connect(str(self.path)) as connection:
            for statement in statements:
                connection.execute(statement)


class PostgresTable(SqlTable):
    def __init__(self, server: Postgres, name: str) -> None:
        super().__init__(name)
        self.server = server
        self.create()

    @property
    def address(self) -> str:
        return f'postgresql://reader:${{DB_PASSWORD}}@127.0.0.1:{self.server.port}/postgres?table=public."{self.name}"'

    @property
    def quoted(self) -> str:
        return f'"{self.name}"'

    def execute(self, *statements: str) -> None:
        self.server.execute(*statements)


class MysqlTable(SqlTable):
    def __init__(self, server: MariaDb, name: str) -> None:
        super().__init__(name)
        self.server = server
        self.create()

    @property
    def address(self) -> str:
        return f'mysql://reader:${{DB_PASSWORD}}@127.0.0.1:{self.server.port}/shop?table="{self.name}"'

    @property
    def quoted(self) -> str:
        return f"`{self.name}`"

    def execute(self, *statements: str) -> None:
        self.server.execute(*statements)


class DeltaFolder(Table):
    tells_deletes = True

    def __init__(self, folder: Path) -> None:
        from deltalake import write_deltalake

        self.path = folder / "a table"
        write_deltalake(self.path, _arrow(FIRST), configuration={"delta.enableChangeDataFeed": "true"})

    @property
    def address(self) -> str:
        return f"delta:{self.path}"

    def insert(self, *rows: Row) -> None:
        from deltalake import write_deltalake

        write_deltalake(self.path, _arrow(rows), mode="append")

    def delete(self, key: int) -> None:
        from deltalake import DeltaTable

        DeltaTable(self.path).delete(f"k = {key}")

    def update(self, key: int, name: str, changed: int) -> None:
        from deltalake import DeltaTable

        DeltaTable(self.path).update(predicate=f"k = {key}", new_values={"name": name, "changed": changed})


class IcebergFolder(Table):
    #: whatever is no append is read again as a whole
    tells_deletes = True

    def __init__(self, folder: Path) -> None:
        from pyiceberg.catalog import load_catalog

        self.options = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
        self.catalog = load_catalog("test", **self.options)
        self.catalog.create_namespace("shop")
        self.table = self.catalog.create_table("shop.products", SCHEMA)
        self.table.append(_arrow(FIRST))

    @property
    def address(self) -> str:
        options = {"name": "test", **self.options}
        return "iceberg:shop.products?" + "&".join(f"catalog.{name}={value}" for name, value in options.items())

    def insert(self, *rows: Row) -> None:
        self.table.append(_arrow(rows))

    def delete(self, key: int) -> None:
        self.table.delete(f"k == {key}")


class ParquetFile(Table):
    tells_deletes = True

    def __init__(self, folder: Path) -> None:
        self.path = folder / "a file.parquet"
        self.rows = list(FIRST)
        self._write()

    def _write(self) -> None:
        import pyarrow.parquet as pq

        pq.write_table(_arrow(self.rows), self.path)

    @property
    def address(self) -> str:
        return str(self.path)

    def insert(self, *rows: Row) -> None:
        self.rows += rows
        self._write()

    def delete(self, key: int) -> None:
        self.rows = [row for row in self.rows if row[0] != key]
        self._write()


def _arrow(rows: Any) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)
