# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Share the machine code of kernels between the programs that a process compiles and runs.

Programs of one model under other plans, schedules or engines consist mostly of the same kernels,
and generating their machine code takes most of the time of a build. A kernel that is already in the
library of an earlier program is left out of a build, and that library is linked instead.
"""

from __future__ import annotations

import collections

import tvm
import tvm_ffi
from tvm import ir, relax, tirx

_MOST_KERNELS = 8192
"""Kernels that are remembered; at more, all are forgotten."""


class SharedKernels:
    """Kernels by content and target, and the libraries that hold their machine code.

    Kernels are the same where they are structurally equal. Each content has its own name in the
    process, so libraries never disagree about a name. The caller holds the lock of compilation.
    """

    def __init__(self) -> None:
        self._contents: dict[tuple[int, str], list[tuple[tirx.PrimFunc, str]]] = (
            collections.defaultdict(list)
        )
        self._libraries: dict[str, tvm.runtime.Module] = {}
        self._named = 0

    def compile(self, mod: ir.IRModule, target: tvm.target.Target) -> relax.VMExecutable:
        """Compile a module of kernels and calls of them, as TVM's default build leaves it.

        Parameters
        ----------
        mod : ir.IRModule
            The module behind the Relax pipeline of the build.
        target : tvm.target.Target
            A CPU.
        """
        if len(self._libraries) > _MOST_KERNELS:
            self._contents.clear()
            self._libraries.clear()
        functions: dict[ir.GlobalVar, ir.BaseFunc] = dict(mod.functions.items())
        kernels = {gv: fn for gv, fn in functions.items() if isinstance(fn, tirx.PrimFunc)}
        if any(map(calls_functions, kernels.values())):
            return tvm.compile(mod, target, relax_pipeline=None)
        new: dict[str, tirx.PrimFunc] = {}
        libraries: dict[int, tvm.runtime.Module] = {}
        for gv, kernel in kernels.items():
            name = self._name_of(kernel, str(target))
            functions[gv] = relax.ExternFunc(name)
            library = self._libraries.get(name)
            if library is None:
                new[name] = kernel.with_attr("global_symbol", name)
            else:
                libraries[id(library)] = library
        functions.update({ir.GlobalVar(name): kernel for name, kernel in new.items()})
        attrs = {**(mod.attrs or {}), "external_mods": list(libraries.values())}
        linked = ir.IRModule(functions, attrs=attrs, global_infos=mod.global_infos)
        executable = tvm.compile(linked, target, relax_pipeline=None)
        if new:
            library = next(
                m for m in executable.mod.imports if m.implements_function(next(iter(new)))
            )
            self._libraries.update(dict.fromkeys(new, library))
        return executable

    def _name_of(self, kernel: tirx.PrimFunc, target: str) -> str:
        """Return the name of the content of a kernel, a new one at its first use."""
        content = kernel.without_attr("global_symbol")
        candidates = self._contents[int(tvm_ffi.structural_hash(content)), target]
        for other, name in candidates:
            if tvm_ffi.structural_equal(content, other):
                return name
        name = f"tvm_distir_kernel_{self._named}"
        self._named += 1
        candidates.append((content, name))
        return name


def calls_functions(kernel: tirx.PrimFunc) -> bool:
    """Return whether a kernel calls functions of its module."""
    return (
        tvm_ffi.structural_walk(
            kernel.body, [(ir.GlobalVar, lambda _: tvm_ffi.VisitInterrupt(True))]
        )
        is not None
    )
