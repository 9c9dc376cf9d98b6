"""Dead letters: tuples without a match go to a table of their own, each once, beside the table of the rows.

    task:    rows -> files of the table     tuples without a match -> files of the dead letters
    driver:  commit of the dead letters, then commit of the rows; each under the id of the query and the batch

A batch that is attempted again has the same rows and the same dead letters, since its version of R is recorded. So it
does not matter where an attempt was cut off: a commit that is there is not made again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame

from semistream.errors import ConfigError
from semistream.lake.files import WrittenFile
from semistream.lake.table import LakeTable, open_table
from semistream.lake.target import Target
from semistream.spark.checkpoints import claim_letters
from semistream.spark.mapping import Mail
from semistream.spark.missing import LETTERS_NOTE

if TYPE_CHECKING:
    from semistream.spark.lake import WritePlan


@dataclass(frozen=True)
class Letterbox:
    """The tables of the dead letters of a query."""

    boxes: tuple[tuple[Mail, LakeTable], ...] = ()

    @staticmethod
    def of(plan: WritePlan, place: str) -> Letterbox:
        """Find them; `place` is where the rows go."""
        names = [mail.name for mail in plan.mail]
        for mail in plan.mail:
            if mail.letters.path == place:
                raise ConfigError(f"dead_letters={place!r} is the table of the rows; name another folder for them")
            if names.count(mail.name) > 1:
                raise ConfigError(
                    f"two enrichments named {mail.name!r} have dead letters, which would be taken for those of one: "
                    "give each a name= of its own"
                )
        return Letterbox(tuple((mail, open_table(mail.letters.path, mail.letters.format)) for mail in plan.mail))

    def prepare(self) -> None:
        """Create them, or check that those that are there take the tuples."""
        for mail, table in self.boxes:
            table.prepare(pa.ipc.read_schema(pa.py_buffer(mail.schema)))

    def claim(self, checkpoint: Path) -> None:
        """Refuse other tables while a batch may have put its dead letters into these, and not its rows."""
        claim_letters(checkpoint, [[mail.name, mail.letters.format, mail.letters.path] for mail, _ in self.boxes])

    def targets(self, app: str, batch: int) -> list[Target]:
        return [table.target(_app(app, mail), batch) for mail, table in self.boxes]

    def commit(self, app: str, batch: int, files: Sequence[Sequence[WrittenFile]]) -> None:
        for (mail, table), mine in zip(self.boxes, files, strict=True):
            table.commit(_app(app, mail), batch, mine)


def _app(app: str, mail: Mail) -> str:
    """Enrichments may share a table."""
    return f"{app}/dead letters of {mail.name}"


def refuse_letters(df: DataFrame, why: str) -> None:
    """Refuse rows that come from Spark if an enrichment among what makes them has dead letters: nobody would."""
    if LETTERS_NOTE in str(df._jdf.queryExecution().analyzed().toString()):
        raise ConfigError(
            f"dead letters are written by the tasks that join, and here join and write are not one pass, since {why}: "
            "do that before enrich or after reading the table, or choose another on_missing"
        )
