# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Wrap a level-5 module for engines, with entry functions that are compiled on demand."""

from __future__ import annotations

import collections
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import ir

from tvm_distir.core.collectives import with_collectives
from tvm_distir.core.ir import check_module, outline_branches
from tvm_distir.core.rewriting import plain_calls, reached_from
from tvm_distir.execution.runtime.dispatch.kernel_dispatch import dispatch_kernels
from tvm_distir.execution.runtime.dispatch.packed_names import TVM, library_of
from tvm_distir.support import ForkSafeLock
from tvm_distir.transforms import DonateInputs, ExpandSchedule

from .async_calls import split_starts
from .axis_table import AxisTable
from .communication import Communication, communication_of
from .compilation import compile_module, compile_turn
from .compiled import LibraryCache
from .dist_io import entries
from .groups import axis_table
from .io_layout import EntryFunction
from .linking import export_library, find_compiler
from .overwritten import overwritten_inputs
from .step_state import StepState, state_of
from .targets import target_in_scope

_LIBRARIES = LibraryCache(64)


def entry_module(mod: ir.IRModule, entry: str) -> ir.IRModule:
    """Return a module of the entry function and all functions that it reaches, for compilation."""
    part = ir.IRModule(reached_from(mod, [entry]), global_infos=mod.global_infos)
    return split_starts(outline_branches(part))


def compile_entry(mod: ir.IRModule, name: str) -> tvm.runtime.Module:
    """Compile an entry function with its callees; returns a module to make machines of.

    Raises
    ------
    EngineError
        DIST0606 when TVM cannot compile it.
    """
    return _LIBRARIES.get(entry_module(mod, name), name)


class LoweredProgram:
    """A level-5 module with ``dist.io`` as a runnable program.

    Parameters
    ----------
    mod : IRModule
    dispatch : str
        The library whose kernels its ops call for the target in scope, see
        :func:`.packed_names.library_of`.

    Raises
    ------
    EngineError
        DIST0603 when it is not at level 5, DIST0623 for kernels that cannot be called.
    """

    stored: Mapping[int, Any] = {}

    def __init__(self, mod: ir.IRModule, dispatch: str = TVM) -> None:
        check_module(mod, "the distributed program")
        keys = target_in_scope().keys
        library = library_of(dispatch, keys)
        with compile_turn():  # a pipelined step is expanded
            expanded = ExpandSchedule()(with_collectives(plain_calls(mod)))
            self.mod = dispatch_kernels(expanded, library, "gpu" in keys)
        self.entries = entries(self.mod)

        self._libraries: dict[tuple[str, str], tvm.runtime.Module] = {}
        self._donating: dict[tuple[str, ...], LoweredProgram] = {}

    def with_donation(self, donate: Sequence[str]) -> LoweredProgram:
        """Return the program that may write results into donated inputs; made once per choice."""
        patterns = tuple(donate)
        if patterns not in self._donating:
            self._donating[patterns] = LoweredProgram(DonateInputs(list(patterns))(self.mod))
        return self._donating[patterns]

    @functools.cached_property
    def state(self) -> StepState:
        """Return the outputs that are inputs of the next step, of a training step."""
        return state_of(self.mod, self.entries)

    @functools.cached_property
    def overwritten(self) -> frozenset[int]:
        """Return the positions of the inputs that a run may overwrite."""
        return overwritten_inputs(self.mod, self.entries)

    @functools.cached_property
    def axes(self) -> AxisTable:
        """Return the names of the mesh axes that collectives work along."""
        return axis_table(self.mod)

    @functools.cached_property
    def communication(self) -> Communication:
        """Return the groups and pairs of ranks that communicate."""
        return communication_of(self.mod)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Return a fingerprint of the program that is equal in every process."""
        return f"{int(tvm_ffi.structural_hash(self.mod)) & (1 << 64) - 1:016x}"

    @property
    def target(self) -> str:
        """Return the target in scope, in TVM's JSON form."""
        return str(target_in_scope())

    def library(self, entry: EntryFunction) -> tvm.runtime.Module:
        """Return the runtime module that holds the entry function; compiled at its first use."""
        key = entry.function, self.target
        if key not in self._libraries:
            self._libraries[key] = compile_entry(self.mod, entry.function)
        return self._libraries[key]

    def save(self, entry: EntryFunction, folder: Path) -> Path:
        """Write the compiled library, or the module itself where there is no linker.

        A process that loads the latter compiles it, for the target in scope here.
        """
        part = entry_module(self.mod, entry.function)
        compiler = find_compiler()
        if compiler is None:
            path = folder / f"{entry.function}.json"
            saved = {"target": self.target, "module": ir.save_json(part)}
            path.write_text(json.dumps(saved), encoding="utf-8")
            return path
        path = folder / f"{entry.function}.so"
        export_library(compile_module(part, entry.function), path, compiler)
        return path


_PROGRAMS: collections.OrderedDict[Any, tuple[tuple[object, ...], LoweredProgram]] = (
    collections.OrderedDict()
)
_KEPT_PROGRAMS = 16
_turn = ForkSafeLock()


def lowered_program(mod: ir.IRModule, dispatch: str = TVM) -> LoweredProgram:
    """Return the program of a module; made once for the same functions, by their identity.

    Functions are immutable and a module is not, so that the module itself is not the key.

    Raises
    ------
    EngineError
        As :class:`LoweredProgram`.
    """
    check_module(mod, "the distributed program")
    nodes = [node for pair in mod.functions.items() for node in pair]
    nodes += [mod.attrs, *(info for infos in mod.global_infos.values() for info in infos)]
    target = target_in_scope()
    library = library_of(dispatch, target.keys)
    addresses = tuple(0 if node is None else node.__chandle__() for node in nodes)
    key = (library, str(target), addresses)
    with _turn():
        if key in _PROGRAMS:
            _PROGRAMS.move_to_end(key)
            return _PROGRAMS[key][1]
    program = LoweredProgram(mod, library)
    with _turn():
        # The nodes are held, so that no others get their addresses.
        _PROGRAMS[key] = tuple(nodes), program
        while len(_PROGRAMS) > _KEPT_PROGRAMS:
            _PROGRAMS.popitem(last=False)
    return program


def load_and_compile(path: Path, function: str) -> tvm.runtime.Module:
    """Compile a module that :meth:`LoweredProgram.save` wrote without a linker."""
    saved = json.loads(path.read_text(encoding="utf-8"))
    with tvm.target.Target(json.loads(saved["target"])):
        return compile_entry(tvm.ir.load_json(saved["module"]), function)
