# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the programs that engines run: entry functions with a library for each."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from tvm_distir.execution.runtime.dispatch.packed_names import AUTO
from tvm_distir.support import EngineError

from .axis_table import AxisTable
from .communication import Communication
from .io_layout import EntryFunction
from .step_state import StepState

if TYPE_CHECKING:
    import tvm


@runtime_checkable
class Runnable(Protocol):
    """A distributed program that can be run: a lowered module, or a deployed folder."""

    @property
    def entries(self) -> tuple[EntryFunction, ...]:
        """Return the entry functions, in mesh order."""

    @property
    def axes(self) -> AxisTable:
        """Return the names of the mesh axes that collectives work along."""

    @property
    def communication(self) -> Communication:
        """Return the groups and pairs of ranks that communicate."""

    @property
    def stored(self) -> Mapping[int, Any]:
        """Return the inputs that are stored with the program, by position; see ``bind_inputs``."""

    @property
    def overwritten(self) -> frozenset[int]:
        """Return the positions of the inputs whose memory a run may overwrite."""

    @property
    def state(self) -> StepState:
        """Return the outputs that are inputs of the next step, of a training step."""

    @property
    def fingerprint(self) -> str:
        """Return a fingerprint of the program that is equal in every process."""

    @property
    def target(self) -> str:
        """Return the target of the program, or else of a compilation now, in TVM's JSON form."""

    def library(self, entry: EntryFunction) -> tvm.runtime.Module:
        """Return the runtime module that holds the entry function, in this process."""

    def save(self, entry: EntryFunction, folder: Path) -> Path:
        """Return the file from which another process can load it (:func:`load_saved`)."""


class DerivedProgram:
    """Base of a program that is another one compiled, or at certain sizes.

    Parameters
    ----------
    program : Runnable
        The program, with the same axes, ranks and fingerprint.
    """

    def __init__(self, program: Runnable) -> None:
        self._program = program

    axes = property(attrgetter("_program.axes"))
    communication = property(attrgetter("_program.communication"))
    overwritten = property(attrgetter("_program.overwritten"))
    state = property(attrgetter("_program.state"))
    fingerprint = property(attrgetter("_program.fingerprint"))


def as_runnable(dist: Any, dispatch: str = AUTO) -> Runnable:
    """Return a program as it is, a level-5 module wrapped.

    Raises
    ------
    EngineError
        DIST0623 for a library whose kernels cannot be called, or for any where the program is
        compiled already.
    """
    if isinstance(dist, Runnable):
        if dispatch != AUTO:
            problem = "the program is compiled already"
            remedy = "Give dispatch to td.compile or td.deploy."
            raise EngineError("DIST0623", problem, location="dispatch", remedy=remedy)
        return dist
    from .lowered import lowered_program

    return lowered_program(dist, dispatch)


def with_donation(program: Runnable, names: Sequence[str]) -> Runnable:
    """Return the program that may write results into inputs of some names, where it has IR."""
    make = getattr(program, "with_donation", None) if names else None
    donating: Runnable = program if make is None else make(names)
    return donating


def load_saved(path: Path, function: str) -> tvm.runtime.Module:
    """Load a file of :meth:`Runnable.save`; a module without a library is compiled."""
    if path.suffix == ".json":
        from .lowered import load_and_compile

        return load_and_compile(path, function)
    import tvm

    _load_extra_functions()
    return tvm.runtime.load_module(str(path))


@functools.cache
def _load_extra_functions() -> None:
    """Load the functions that compiled code may call, such as sorting and top-k.

    A process with TVM's runtime alone (``TVM_USE_RUNTIME_LIB=1``) does not do so by itself.
    """
    import tvm

    for library in sorted(Path(tvm.__file__).parent.glob("lib/libtvm_runtime_extra.*")):
        ctypes.CDLL(str(library))
