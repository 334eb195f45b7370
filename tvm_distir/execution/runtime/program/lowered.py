# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Wrap a level-5 module for engines, with entry functions that are compiled on demand."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import ir

from tvm_distir.core.ir import check_module, outline_branches
from tvm_distir.core.rewriting import reached_from
from tvm_distir.execution.runtime.dispatch.kernel_dispatch import dispatch_kernels
from tvm_distir.execution.runtime.dispatch.packed_names import TVM, library_of
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
            self.mod = dispatch_kernels(ExpandSchedule()(mod), library, "gpu" in keys)
        self.entries = entries(self.mod)

    def with_donation(self, donate: Sequence[str]) -> LoweredProgram:
        """Return the program that appends to donated inputs in place."""
        program = copy.copy(self)
        program.mod = DonateInputs(list(donate))(self.mod)
        return program

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
        return compile_entry(self.mod, entry.function)

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


def load_and_compile(path: Path, function: str) -> tvm.runtime.Module:
    """Compile a module that :meth:`LoweredProgram.save` wrote without a linker."""
    saved = json.loads(path.read_text(encoding="utf-8"))
    with tvm.target.Target(json.loads(saved["target"])):
        return compile_entry(tvm.ir.load_json(saved["module"]), function)
