"""A damaged store is refused with words that say what is wrong and what to do; it is never read as whole."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.master.decoding import every_type

from semistream.errors import ChecksumError, StoreError
from semistream.master import page_reader
from semistream.master.base import Int64s, aligned_buffer
from semistream.master.build import build_pages
from semistream.master.pages import PageMaster
from semistream.sealed import read_sealed, sealed


@pytest.fixture
def store(tmp_path: Path) -> Path:
    build_pages(every_type(200), tmp_path / "r", on="k", page_rows=16)
    return tmp_path / "r"


def _flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 0x10
    path.write_bytes(raw)


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("columns", [["tiny"], ["word"]])
def test_a_flipped_byte(store: Path, columns: list[str], direct: bool) -> None:
    with PageMaster(store).open([]) as reader:
        start = reader.page_offset(5)
    for at in (start + 4, start + 40, start + 1200):
        _flip(store / "v000001" / "pages-00000.arrow", at)
        with PageMaster(store).open(columns, direct) as reader:
            buffer = aligned_buffer(reader.buffer_bytes(13))
            assert reader.read(0, 5, buffer).n_rows == 80
            with pytest.raises(ChecksumError, match=r"page 5 of .*pages-00000\.arrow .* was written: .* build_pages"):
                reader.read(3, 4, buffer)
            with pytest.raises(ChecksumError, match="page 5 "):
                reader.read_runs(np.array([1, 5]), buffer, 0)
            if not direct:
                assert reader.map(np.array([4, 6])).n_rows == 32
                for _ in range(2):
                    with pytest.raises(ChecksumError, match="page 5 "):
                        reader.map(np.array([4, 5, 6]))
        _flip(store / "v000001" / "pages-00000.arrow", at)


def test_mapped_pages_are_checked_once(store: Path) -> None:
    with PageMaster(store).open(["tiny"]) as reader:
        start = reader.page_offset(5)
        reader.map(np.array([5]))
        with (store / "v000001" / "pages-00000.arrow").open("r+b") as file:
            file.seek(start + 1000)
            file.write(b"\xff" * 8)
        assert reader.map(np.array([5])).n_rows == 16
        with pytest.raises(ChecksumError):
            reader.read(5, 1, aligned_buffer(reader.buffer_bytes(1)))


def test_a_flipped_byte_of_the_index(store: Path) -> None:
    size = (store / "v000001" / "index-00000.arrow").stat().st_size
    _flip(store / "v000001" / "index-00000.arrow", size // 2)
    with pytest.raises(ChecksumError, match=r"index-00000\.arrow"):
        PageMaster(store).open(["tiny"])


def test_a_file_cut_while_open(store: Path) -> None:
    with PageMaster(store).open(["tiny"]) as reader:
        with (store / "v000001" / "pages-00000.arrow").open("r+b") as file:
            file.truncate(reader.page_offset(7))
        buffer = aligned_buffer(reader.buffer_bytes(13))
        assert reader.read(0, 7, buffer).n_rows == 112
        with pytest.raises(StoreError, match="truncated"):
            reader.read(0, 8, buffer)


@pytest.mark.parametrize("has_madvise", [True, False])
@pytest.mark.parametrize("pages_left", [0, 7])
def test_a_file_cut_while_mapped(
    store: Path, monkeypatch: pytest.MonkeyPatch, pages_left: int, has_madvise: bool
) -> None:
    """Touching what is gone would end the process with SIGBUS."""
    if not has_madvise:
        monkeypatch.setattr("semistream.master.page_reader.populate_pages", lambda *_: 0)
    with PageMaster(store).open(["tiny"]) as reader:
        reader.map(np.array([0]))
        with (store / "v000001" / "pages-00000.arrow").open("r+b") as file:
            file.truncate(reader.page_offset(pages_left) // 4096 * 4096)
        for _ in range(2):
            with pytest.raises(StoreError, match=r"pages-00000\.arrow .*(truncated|checksum)"):
                reader.map(np.array([1, 5, 7, 8, 9, 12]))


def test_many_mapped_pages_are_read_ahead_and_checked(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is asked for some pages more before those in front of them are waited for; each is checked."""
    asked: list[tuple[str, list[int]]] = []
    for name in ("announce_pages", "populate_pages"):
        kernel = getattr(page_reader, name)

        def noted(base: Int64s, pages: Int64s, starts: Int64s, name: str = name, kernel: Any = kernel) -> int:
            asked.append((name, pages.tolist()))
            return kernel(base, pages, starts)

        monkeypatch.setattr(page_reader, name, noted)
    monkeypatch.setattr(page_reader, "_TOUCHED_TOGETHER", 4)
    wanted = [0, 1, 2, 4, 6, 7, 8, 9, 11, 12]
    with PageMaster(store).open(["tiny"]) as reader:
        _flip(store / "v000001" / "pages-00000.arrow", reader.page_offset(11) + 900)
        with pytest.raises(ChecksumError, match="page 11 "):
            reader.map(np.array(wanted))
        _flip(store / "v000001" / "pages-00000.arrow", reader.page_offset(11) + 900)
        assert reader.map(np.array(wanted)).n_rows == 16 * (len(wanted) - 1) + reader.n_rows % 16
    one, two, three = wanted[:4], wanted[4:8], wanted[8:]
    steps = [("announce", one), ("announce", two), ("populate", one), ("announce", three), ("populate", two)]
    steps += [("announce", []), ("populate", three)]
    assert asked == 2 * [(f"{name}_pages", pages) for name, pages in steps]


def test_a_file_cut_before_it_is_mapped(store: Path) -> None:
    with PageMaster(store).open(["tiny"]) as reader:
        with (store / "v000001" / "pages-00000.arrow").open("r+b") as file:
            file.truncate(0)
        with pytest.raises(StoreError, match=r"pages-00000\.arrow cannot be mapped"):
            reader.map(np.array([1]))


def _edit(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def damage(version: Path) -> None:
        raw, _ = read_sealed(version / "manifest.json")
        change(raw)
        (version / "manifest.json").write_bytes(sealed(raw)[0])

    return damage


def _cut(name: str) -> Callable[[Path], None]:
    def damage(version: Path) -> None:
        raw = (version / name).read_bytes()
        (version / name).write_bytes(raw[: len(raw) // 2])

    return damage


def _linked(name: str) -> Callable[[Path], None]:
    """The same bytes outside the store, and a link to them."""

    def damage(version: Path) -> None:
        path = version / name if name else version
        outside = version.parent.parent / "outside"
        path.rename(outside)
        path.symlink_to(outside)

    return damage


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "pages cut": (_cut("pages-00000.arrow"), r"pages-00000\.arrow has .* truncated"),
    "index cut": (_cut("index-00000.arrow"), r"index-00000\.arrow has .* truncated"),
    "manifest cut": (_cut("manifest.json"), r"manifest\.json cannot be read .*checksum"),
    "manifest binary": (lambda v: (v / "manifest.json").write_bytes(b"\xff\xfe"), r"manifest\.json cannot be read"),
    "manifest a list": (lambda v: (v / "manifest.json").write_bytes(sealed([])[0]), "does not describe"),
    "manifest of an older release": (
        lambda v: (v / "manifest.json").write_text('{"format_version": 2}'),
        "format version 2 .* build the store again",
    ),
    "manifest of another version": (_edit(lambda m: m.update(version=2)), "describes version 2"),
    "file outside": (_edit(lambda m: m["files"].update({"../CURRENT": {"bytes": 1}})), r"'\.\./CURRENT'"),
    "file elsewhere": (_edit(lambda m: m["files"].update({"/etc/passwd": {"bytes": 1}})), "'/etc/passwd'"),
    "file a link": (_linked("pages-00000.arrow"), "no plain file"),
    "version a link": (_linked(""), "is not there"),
    "manifest gone": (lambda v: (v / "manifest.json").unlink(), "missing"),
    "pages gone": (lambda v: (v / "pages-00000.arrow").unlink(), "cannot be read"),
    "newer format": (_edit(lambda m: m.update(format_version=99)), "format version 99"),
    "other format": (_edit(lambda m: m.update(format="other")), "does not describe"),
    "field gone": (_edit(lambda m: m.pop("rows")), "damaged"),
    "field new": (_edit(lambda m: m.update(extra=1)), "damaged"),
    "schema broken": (_edit(lambda m: m.update(schema="AAAA")), "damaged"),
    "counts wrong": (_edit(lambda m: m.update(rows=10_000)), "do not fit"),
    "coder broken": (_edit(lambda m: m.update(coder={})), "key types"),
    "version gone": (lambda v: shutil.rmtree(v), "is not there"),
    "current empty": (lambda v: (v.parent / "CURRENT").write_text(""), "cannot be read"),
    "current of an older release": (lambda v: (v.parent / "CURRENT").write_text("v000001\n"), "older release"),
    "current foreign": (lambda v: (v.parent / "CURRENT").write_bytes(sealed({"version": "../x"})[0]), r"'\.\./x'"),
    "current binary": (lambda v: (v.parent / "CURRENT").write_bytes(b"\xff\xfe"), "cannot be read"),
    "current gone": (lambda v: (v.parent / "CURRENT").unlink(), "no file CURRENT"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_seen_when_the_store_is_opened(store: Path, case: str) -> None:
    damage, words = DAMAGE[case]
    damage(store / "v000001")
    with pytest.raises(StoreError, match=words):
        PageMaster(store)


def test_no_store_at_all(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="CURRENT"):
        PageMaster(tmp_path / "absent")


def test_a_closed_reader(store: Path) -> None:
    reader = PageMaster(store).open(["tiny"])
    reader.close()
    reader.close()
    with pytest.raises(StoreError, match="closed"):
        reader.read(0, 1, aligned_buffer(reader.buffer_bytes(1)))


def test_readers_of_one_master_share_what_was_checked(store: Path) -> None:
    """Who takes over from another reader finds its pages mapped and checked; a master that is opened anew does not."""
    master = PageMaster(store)
    with master.open(["tiny"]) as reader:
        start = reader.page_offset(5)
        reader.map(np.array([5]))
    _flip(store / "v000001" / "pages-00000.arrow", start + 1000)
    with master.open(["word"]) as reader:
        assert reader.map(np.array([5])).n_rows == 16
        assert reader.map(np.array([4])).n_rows == 16
    other = PageMaster(store)
    with other.open(["tiny"]) as reader, pytest.raises(ChecksumError, match="page 5 "):
        reader.map(np.array([5]))
    other.close()
    master.close()
    assert master.shared.mapped is None
