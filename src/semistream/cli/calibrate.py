"""`semistream calibrate`: what operations cost on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from semistream.cli.arguments import AsJson, require
from semistream.cli.notices import compile_notice, notes, reported
from semistream.errors import ConfigError

if TYPE_CHECKING:
    from semistream.cost.profile import CostProfile


def calibrate(
    out: Annotated[Path | None, typer.Option(help="Where to store the profile (default: the cache folder).")] = None,
    folder: Annotated[Path | None, typer.Option(help="Folder on the disk that is to be measured.")] = None,
    seconds: Annotated[float, typer.Option(help="No round of runs begins after this many seconds.")] = 150.0,
    as_json: AsJson = False,
) -> None:
    """Measure what operations cost on this machine, and store it as the profile that predictions use."""
    with reported():
        if seconds <= 0:
            raise ConfigError(f"--seconds {seconds} is too short; it must be above 0")
        if folder is not None:
            require(folder, "folder")
        with compile_notice():
            from semistream.lab.calibrate.calibrate import calibrate as measure
        with notes.status("measuring") as status:
            profile = measure(folder=folder, seconds=seconds, say=lambda what: status.update(f"measuring {what}"))
        place = profile.save(out)
    if as_json:
        typer.echo(json.dumps(profile.to_json(), indent=1))
        return
    _print_profile(profile)
    notes.print(f"stored in {place}", markup=False)


def _print_profile(profile: CostProfile) -> None:
    from semistream.cost.profile import SYMBOLS

    table = Table("unit", "what", "ns", "95 % interval", box=None, pad_edge=False)
    for symbol, what in SYMBOLS.items():
        cost = profile.units[symbol]
        table.add_row(symbol, what, f"{cost.seconds * 1e9:,.1f}", f"{cost.low * 1e9:,.1f} – {cost.high * 1e9:,.1f}")
    for mode, io in profile.io.items():
        seek, speed = io.seek_s, io.bytes_per_s
        table.add_row(
            "c_I/O",
            f"{mode} read: seek, and its bandwidth in MB/s",
            f"{seek.seconds * 1e9:,.0f}, {speed.seconds / 1e6:,.0f}",
            f"{seek.low * 1e9:,.0f} – {seek.high * 1e9:,.0f}, {speed.low / 1e6:,.0f} – {speed.high / 1e6:,.0f}",
        )
    Console().print(table)


def profile_named(given: str | None) -> CostProfile:
    from semistream.cost.profile import CostProfile, paper_profile, profile_of_machine

    if given is None:
        found = profile_of_machine()
        if found.name == "typical":
            notes.print("this machine is not calibrated; a typical profile is used (run `semistream calibrate`)")
        return found
    return paper_profile() if given == "papers" else CostProfile.load(given)
