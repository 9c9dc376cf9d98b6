"""`njit` that compiles wherever it runs, when a kernel is first needed, and finds again what it compiled.

A join uses a few dozen of the kernels, a list of algorithms none: numba itself is imported, and a kernel compiled or
loaded, when it is first called, or when another kernel that calls it has to be compiled.

Numba keeps compiled code beside the source, or under the user's home, and refuses to compile with `cache=True` where
neither can be written: in most container images, where the program is installed by another user and nobody has a
home. Kernels then go to a folder of this user's own among the temporary files, and where that cannot be had either,
or the disk is full, they are compiled for this process only.
"""

from __future__ import annotations

import hashlib
import os
import pkgutil
import stat
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

_VARIABLE = "NUMBA_CACHE_DIR"
_kernels: list[Kernel] = []
#: called once, when a kernel had to be compiled: most of the time that a first run takes
_listeners: list[Callable[[], None]] = []


def njit(*signature: Any, cache: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Numba's `njit`, put off; `cache` asks for compiled code to be kept between processes and does not insist."""
    return lambda function: Kernel(function, signature, cache, options)


def load_kernels() -> None:
    """Compile or load every kernel: for a process whose children share them, and for a folder that is to have them."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        import_module(f"{__package__}.{module.name}")
    for kernel in _kernels:
        if kernel.has_signature:
            kernel.load()


def when_compiling(tell: Callable[[], None]) -> None:
    """Have somebody told, once, that kernels are compiled, which loading them would not be worth saying."""
    _listeners[:] = [tell]


class Kernel:
    """A function that is compiled, or found compiled, when it is first called.

    To numba it is the dispatcher that it stands for: it has its type, and its attributes.
    """

    def __init__(
        self, function: Callable[..., Any], signature: tuple[Any, ...], cache: bool, options: dict[str, Any]
    ) -> None:
        self.__doc__, self.__name__, self.__module__ = function.__doc__, function.__name__, function.__module__
        self.__wrapped__ = function
        self.has_signature = bool(signature)
        self._signature, self._cached, self._options = signature, cache, options
        self._call: Callable[..., Any] = self._first_call
        self._loaded: Any = None
        _kernels.append(self)

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)

    def _first_call(self, *arguments: Any) -> Any:
        return self.load()(*arguments)

    def load(self) -> Any:
        """The dispatcher; with a signature its code is there."""
        from numba.core.compiler_lock import global_compiler_lock

        # The lock that numba compiles under: another one, taken before or after it, could wait for itself.
        with global_compiler_lock:
            if self._loaded is None:
                self._loaded = self._call = _compiled(self.__wrapped__, self._signature, self._cached, self._options)
                if _listeners and self.has_signature and any(self._loaded.stats.cache_misses.values()):
                    _listeners.pop()()
        return self._loaded

    @property
    def _numba_type_(self) -> Any:
        return import_module("numba").typeof(self.load())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.load(), name)


class Intrinsic:
    """What numba compiles to an instruction; imported from its module when a kernel that uses it is compiled."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    @property
    def _numba_type_(self) -> Any:
        from numba.core.registry import cpu_target

        made = getattr(import_module(self._module), self._name)
        typing: Any = cpu_target.typing_context
        # The import has told numba of it, and the context has to ask what is new.
        typing.refresh()
        return typing.resolve_value_type(made)

    def __call__(self, *arguments: Any) -> Any:
        raise TypeError(f"{self._name} is for kernels only")


class Both:
    """A plain function for Python code, of arrays too, that kernels can call as well."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__doc__, self.__name__, self.__module__ = function.__doc__, function.__name__, function.__module__
        self.__wrapped__ = function
        self._kernel = Kernel(function, (), False, {})

    def __call__(self, *arguments: Any) -> Any:
        return self.__wrapped__(*arguments)

    @property
    def _numba_type_(self) -> Any:
        return self._kernel._numba_type_


def _compiled(function: Callable[..., Any], signature: tuple[Any, ...], cache: bool, options: dict[str, Any]) -> Any:
    numba: Any = import_module("numba")
    if cache:
        cached = numba.njit(*signature, cache=True, **options)
        try:
            return cached(function)
        except (RuntimeError, OSError):
            # RuntimeError: numba found no place for its cache. Any other one is raised again below.
            pass
        if _move_cache():
            try:
                return cached(function)
            except (RuntimeError, OSError):
                pass
    return numba.njit(*signature, **options)(function)


def _move_cache() -> bool:
    """Have numba keep compiled code in a private folder; False if there is none, or the user has named one.

    The environment is changed too: numba reads it again whenever a variable of its own changes there.
    """
    config: Any = import_module("numba.core.config")
    if config.CACHE_DIR:
        return False
    folder = _private_folder()
    if folder is None:
        return False
    os.environ[_VARIABLE] = config.CACHE_DIR = str(folder)
    return True


def _private_folder() -> Path | None:
    """A folder among the temporary files that nobody else can have put code into, or None.

    Numba sees a change of the file a kernel stands in, not of those it calls into: other sources, another folder.
    """
    sources = hashlib.sha256()
    try:
        folder = Path(tempfile.gettempdir()) / f"semistream-{os.geteuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        for path in sorted(Path(__file__).parent.glob("*.py")):
            sources.update(path.read_bytes())
    except OSError:
        return None
    own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
    return folder / sources.hexdigest()[:16] if own else None
