"""Players go through their streams once, say what a batch reads, and are refused when their rows are not right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from semistream.errors import SemiStreamError
from semistream.lab.contest.contestants import Contestant
from semistream.lab.contest.player import Operator, Player
from semistream.lab.forms import path_of
from semistream.lab.sources import Synthetic

ROWS = 4_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return path_of(Synthetic(ROWS), "pages", tmp_path_factory.mktemp("data"))


class Loses(Contestant):
    """Gives all rows of a batch but the last one."""

    def join(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        yield batch.slice(1)


def test_wrong_output_is_refused() -> None:
    player = Player("loses", Loses(Path(), 0, 1), ROWS, 10)
    player.batch()
    with pytest.raises(SemiStreamError, match="loses gave 9 rows instead of 10"):
        player.close()


def test_batches_of_another_size_go_on_where_the_last_ones_ended() -> None:
    player = Player("loses", Loses(Path(), 0, 1), ROWS, 10)
    first = next(player.batches)
    player.rates.append(1.0)
    player.change_batches(3)
    second = next(player.batches)
    assert first["seq"].to_pylist() == list(range(10))
    assert second["seq"].to_pylist() == [10, 11, 12]
    assert not player.rates


@pytest.mark.parametrize("reads", ["mapped", "direct"])
def test_a_drained_operator_finishes_every_batch_and_says_what_it_read(store: Path, reads: str) -> None:
    operator = Operator("hybridjoin", store, ROWS, 500, 400_000, reads=reads, drain=True)
    for number in range(1, 4):
        operator.batch()
        assert operator.rows_out == operator.tuples_in == 500 * number
        assert operator.join.waiting == 0
    assert len(operator.bytes_read) == 3
    assert min(operator.bytes_read) > 0
    assert sum(operator.bytes_read) == operator.join.stats.bytes_read
    operator.close()


def test_without_draining_tuples_wait_until_the_end(store: Path) -> None:
    operator = Operator("meshjoin", store, ROWS, 500, 400_000)
    operator.batch()
    assert operator.join.waiting > 0
    operator.close()
