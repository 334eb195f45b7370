# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compile a level-5 module ahead of its runs, for a target and with the kernels of a library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tvm
from tvm import ir, relax

from tvm_distir.execution.runtime.dispatch.packed_names import AUTO

from .compilation import compile_module
from .io_layout import EntryFunction
from .linking import export_library, need_compiler
from .lowered import LoweredProgram, entry_module
from .runnable import DerivedProgram
from .targets import as_target


class CompiledProgram(DerivedProgram):
    """A compiled program in memory, which :func:`tvm_distir.run` accepts instead of its module.

    Parameters
    ----------
    program : LoweredProgram
    target : str
        The target in TVM's JSON form.
    executables : mapping of str to relax.VMExecutable
        The compiled module of each entry function.
    """

    stored: Mapping[int, Any] = {}

    def __init__(
        self, program: LoweredProgram, target: str, executables: Mapping[str, relax.VMExecutable]
    ) -> None:
        super().__init__(program)
        self.target, self.entries = target, program.entries
        self.executables = dict(executables)
        self._libraries: dict[str, tvm.runtime.Module] = {}

    def library(self, entry: EntryFunction) -> tvm.runtime.Module:
        """Return the runtime module that holds the entry function."""
        if entry.function not in self._libraries:
            self._libraries[entry.function] = self.executables[entry.function].jit()
        return self._libraries[entry.function]

    def save(self, entry: EntryFunction, folder: Path) -> Path:
        """Write the library of an entry function; returns its path.

        Raises
        ------
        DependencyError
            DIST0112 without a C compiler, which links it.
        """
        path = folder / f"{entry.function}.so"
        export_library(self.executables[entry.function], path, need_compiler())
        return path

    def kernel_source(self, entry: EntryFunction) -> str:
        """Return the source of the kernels of a GPU, such as CUDA; empty on a CPU."""
        parts = _device_modules(self.executables[entry.function].mod)
        return "\n".join(str(part.inspect_source()) for part in parts)


def _device_modules(module: tvm.runtime.Module) -> Iterator[tvm.runtime.Module]:
    """Yield the modules inside of a module whose code runs on a GPU."""
    for part in module.imports:
        if part.kind in ("cuda", "rocm", "metal", "opencl", "vulkan"):
            yield part
        yield from _device_modules(part)


def compile(dist: ir.IRModule, *, target: Any = None, dispatch: str = AUTO) -> CompiledProgram:
    """Compile the entry functions of a distributed module.

    Parameters
    ----------
    dist : IRModule
        The module, at level 5, with ``dist.io``.
    target : str, mapping or tvm.target.Target, optional
        The target, such as ``"cuda:sm_90"`` (see :func:`.targets.as_target`); by default the target
        in scope, or else this machine's CPU.
    dispatch : str
        Whose kernels compute products, attention and convolutions: ``"torch"``, ``"numpy"``,
        ``"tvm"``, or ``"auto"``; see :func:`tvm_distir.run`.

    Returns
    -------
    program : CompiledProgram

    Raises
    ------
    EngineError
        DIST0603 not at level 5, DIST0606 when TVM cannot compile it, DIST0608 for a kernel without
        threads on a GPU, DIST0622 for an unknown target, DIST0623 for kernels of an unknown
        library.

    Examples
    --------
    >>> mod = td.zoo.build("mlp", {"batch": 4, "layers": 1, "hidden": 8})
    >>> plan = td.Plan(mesh={"tp": 2}, rules={"x": td.P(None, "tp")})
    >>> dist = td.distribute(mod, plan)
    >>> program = td.compile(dist)
    >>> [entry.function for entry in program.entries]
    ['main']
    """
    chosen = as_target(target)
    with chosen:
        program = LoweredProgram(dist, dispatch)
        executables = {
            entry.function: compile_module(
                entry_module(program.mod, entry.function), entry.function
            )
            for entry in program.entries
        }
    return CompiledProgram(program, str(chosen), executables)
