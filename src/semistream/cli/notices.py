"""What all commands share: messages on standard error, and errors as one line there and exit status 2."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING

import pyarrow as pa
import typer
from rich.console import Console
from rich.table import Table

from semistream.errors import ConfigError, SemiStreamError
from semistream.spec import format_bytes

if TYPE_CHECKING:
    from rich.progress import Progress

notes = Console(stderr=True, highlight=False, soft_wrap=True)


def note(line: str) -> None:
    """Pass on a line that others wrote, as it is."""
    notes.print(line, markup=False)


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """Turn what a user can cause into one line and status 2; a signal into an exit that leaves no half-written file."""

    def stop(number: int, _: FrameType | None) -> None:
        # The next one (a terminal that is closed and a service that is stopped send both) must not end the clean-up.
        for one in before:
            signal.signal(one, signal.SIG_IGN)
        raise SystemExit(128 + number)

    # A signal that is ignored stays so: that is how nohup works.
    ends = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is not signal.SIG_IGN]
    before = {one: signal.getsignal(one) for one in ends}
    for one in before:
        signal.signal(one, stop)
    try:
        with _not_lost():
            yield
    except (SemiStreamError, OSError, pa.ArrowException) as error:
        message = " ".join(str(error).split()) or type(error).__name__
        typer.echo(f"error: {message}", err=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(130) from None
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@contextlib.contextmanager
def _not_lost() -> Iterator[None]:
    """Raise an end again that came while Python was clearing an object away, where it ignores exceptions."""
    hook_before, alarm_before = sys.unraisablehook, signal.getsignal(signal.SIGALRM)

    def hook(found: sys.UnraisableHookArgs) -> None:
        end = found.exc_value
        if not isinstance(end, SystemExit | KeyboardInterrupt):
            hook_before(found)
            return

        def again(_: int, __: FrameType | None) -> None:
            raise end

        signal.signal(signal.SIGALRM, again)
        signal.setitimer(signal.ITIMER_REAL, 0.001)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, alarm_before)
        sys.unraisablehook = hook_before


@contextlib.contextmanager
def compile_notice() -> Iterator[None]:
    """Say why nothing happens yet while kernels are compiled, which only the first run has to do."""
    from semistream.kernels.compiled import when_compiling

    text = "compiling the kernels; later runs find them ready"
    when_compiling(lambda: print(text, file=sys.stderr, flush=True))
    yield


def progress_bar(console: Console) -> Progress:
    """A bar for somebody who watches, gone at the end; the package is imported where there is one."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, transient=True)


@contextlib.contextmanager
def spark_wanted(what: str) -> Iterator[None]:
    """Spark is an extra: importing our package for it tells whether it is there."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pandas", "py4j", "pyspark"):
            raise
        raise ConfigError(
            f"{what} needs Spark, but the package {error.name} is not installed; run: pip install 'semistream[spark]'"
        ) from error


#: Words for people where the name of a count is not enough.
_LABELS = {
    "asked": "asked for",
    "service_rate_per_s": "rows per second, all in all",
    "hit_rate": "found in the cache",
    "unmatched": "without a match",
    "pages_read": "pages of R read",
    "bytes_read": "bytes of R read",
    "master_version": "version of R",
    "peak_bytes": "memory of the join",
    "budget_bytes": "memory allowed",
    "cache_bytes": "memory of the cache",
}


def summary(result: Mapping[str, object]) -> None:
    """The counts of a run for people to read, on standard output."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in result.items():
        table.add_row(_LABELS.get(name, name.replace("_", " ")), _shown(name, value))
    Console(highlight=False).print(table)


def _shown(name: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "none" if value is None else str(value)
    if name == "hit_rate":
        return f"{value:.1%}"
    if name in ("peak_bytes", "budget_bytes", "cache_bytes", "bytes_read"):
        return format_bytes(value)
    return f"{value:,.0f}" if name == "service_rate_per_s" else f"{value:,}"
