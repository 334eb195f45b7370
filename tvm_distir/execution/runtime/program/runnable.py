# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What engines run: entry functions, and for each a library to make virtual machines of."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from .axis_table import AxisTable
from .layout import EntryFunction


@runtime_checkable
class Runnable(Protocol):
    """A distributed program that can be run: a lowered module, or a deployed folder."""

    @property
    def entries(self) -> tuple[EntryFunction, ...]:
        """Entry functions, in mesh order."""
        ...

    @property
    def axes(self) -> AxisTable:
        """Names of the mesh axes that collectives work along."""
        ...

    @property
    def stored(self) -> Mapping[int, Any]:
        """Inputs that come with the program, by position; see ``bind_inputs``."""
        ...

    @property
    def fingerprint(self) -> str:
        """The same in every process for the same program; rarely that of another one, too."""
        ...

    @property
    def target(self) -> str:
        """For what it is compiled, or would be compiled now: TVM's JSON form."""
        ...

    def library(self, entry: EntryFunction) -> Any:
        """Runtime module that holds the entry function, in this process."""
        ...

    def save(self, entry: EntryFunction, folder: Path) -> Path:
        """File from which another process can load it (:func:`load_saved`)."""
        ...


def as_runnable(dist: Any) -> Runnable:
    """A program as it is, a level-5 module wrapped."""
    if isinstance(dist, Runnable):
        return dist
    from .lowered import Lowered

    return Lowered(dist)


def load_saved(path: Path, function: str) -> Any:
    """Load what :meth:`Runnable.save` wrote; a module without a library is compiled here."""
    if path.suffix == ".json":
        from .lowered import load_and_compile

        return load_and_compile(path, function)
    import tvm

    _load_extra_functions()
    return tvm.runtime.load_module(str(path))


@functools.cache
def _load_extra_functions() -> None:
    """Load what compiled code may call, such as sorting and top-k.

    A process with TVM's runtime alone (``TVM_USE_RUNTIME_LIB=1``) does not do so by itself.
    """
    import tvm

    for library in sorted(Path(tvm.__file__).parent.glob("lib/libtvm_runtime_extra.*")):
        ctypes.CDLL(str(library))
