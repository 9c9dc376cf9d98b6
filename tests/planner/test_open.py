"""One way to open a join: a request, by name or without one."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.planner.conftest import ROWS

from semistream import Join, JoinRequest, open_join
from semistream.engine.join import SemiStreamJoin
from semistream.errors import BudgetError, ConfigError, UnknownAlgorithmError
from semistream.lab.workloads.relation import KEY, STREAM_SCHEMA, stream_batches
from semistream.planner.auto import AutoJoin
from semistream.planner.open import open_request


@pytest.mark.parametrize("algorithm", [None, "auto", "ssj", "cmeshjoin"])
def test_every_join_is_a_join(store: Path, algorithm: str | None) -> None:
    """The protocol is fulfilled, and its parts do what they say, whoever chose the algorithm."""
    batches = list(stream_batches(6_000, ROWS, 1.0, seed=4, batch_rows=2_000))
    with open_join(algorithm, master=store, on=KEY, memory="1MB") as join:
        assert isinstance(join, Join)
        assert type(join) is (SemiStreamJoin if algorithm not in (None, "auto") else AutoJoin)
        assert join.output_schema is None
        assert join.waiting == 0
        assert list(join.advance()) == []
        rows = sum(each.num_rows for each in join.push(batches[0]))
        while join.waiting:
            rows += sum(each.num_rows for each in join.advance())
        assert rows == join.stats.finished == 2_000
        rows += sum(each.num_rows for each in join.run(batches[1:]))
        assert rows == join.stats.rows_out == 6_000
        assert join.waiting == 0
        assert join.seconds > 0
        assert join.memory.peak_bytes <= 1_000_000
        assert set(STREAM_SCHEMA.names) <= set(join.output_schema.names)
        assert join.explain().to_json()["measured"]["tuples"] == 6_000


def test_a_run_that_was_left_loses_nothing(store: Path) -> None:
    batches = list(stream_batches(6_000, ROWS, 1.0, seed=4, batch_rows=2_000))
    with open_join("meshjoin", master=store, on=KEY, memory="1MB") as join:
        parts = join.run(iter(batches))
        rows = next(parts).num_rows
        rows += sum(each.num_rows for each in join.resume())
        taken = join.stats.tuples_in // 2_000
        assert 0 < taken <= 3
        rows += sum(each.num_rows for each in join.run(batches[taken:]))
        assert rows == 6_000


def test_a_request_is_passed_on_whole(store: Path) -> None:
    request = JoinRequest.make(
        on={"k": KEY}, how="left", select=["m01"], memory="2MB", algorithm="SSJ", options={"cache_share": 0.3}
    )
    assert pickle.loads(pickle.dumps(request)) == request
    with open_request(store, request) as join:
        assert isinstance(join, SemiStreamJoin)
        assert (join.name, join.spec, join.budget.total) == ("ssj", request.spec, 2_000_000)
        assert join.options.cache_share == 0.3  # type: ignore[attr-defined]
    by_itself = JoinRequest.make(on="k", memory=1_000_000, max_delay="2s")
    assert by_itself.is_auto
    assert by_itself.max_delay_s == 2.0


def test_what_is_refused_before_anything_is_opened(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    with pytest.raises(UnknownAlgorithmError, match="did you mean"):
        open_join("sssj", master=nowhere, on=KEY)
    with pytest.raises(ConfigError, match="meshjoin has no option 'cache_share'"):
        open_join("meshjoin", master=nowhere, on=KEY, cache_share=0.5)
    with pytest.raises(ConfigError, match="meshjoin has no option 'max_delay'; it is for algorithm='auto'"):
        open_join("meshjoin", master=nowhere, on=KEY, max_delay="1s")
    for algorithm in (None, "ssj"):
        with pytest.raises(ConfigError, match="reads='buffered' is unknown; allowed are auto, mapped, direct"):
            open_join(algorithm, master=nowhere, on=KEY, reads="buffered")
        with pytest.raises(ConfigError, match="has no option 'direct'"):
            open_join(algorithm, master=nowhere, on=KEY, direct=True)
    by_hand = replace(JoinRequest.make(on=KEY, algorithm="ssj"), reads="buffered")
    with pytest.raises(ConfigError, match="reads='buffered' is unknown"):
        open_request(nowhere, by_hand)
    with pytest.raises(BudgetError, match="is not a size"):
        JoinRequest.make(on=KEY, memory="much")


def test_a_master_that_was_opened_stays_open(table: pa.Table, store: Path) -> None:
    from semistream import open_master

    master = open_master(store)
    for _ in range(2):
        with open_join("ssj", master=master, on=KEY, memory="1MB") as join:
            assert not join.owns_master
    master.close()
    with open_join("ssj", master=store, on=KEY, memory="1MB") as join:
        assert join.owns_master
