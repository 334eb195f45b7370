# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Remembers what was compiled, and compiles several small modules at once."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax

from ...errors import EngineError
from .kernels import compile_module
from .targets import target_in_scope

_CACHE_SIZE = 256

KERNEL = "segment"
"""Name of the function in each module of a :class:`KernelCache`."""

Key = tuple[int, str]
"""Structural hash of a module, and the target it was compiled for."""


class _Known:
    """Values by module and target; of modules whose hashes meet, the equal one is found.

    Parameters
    ----------
    size : int
        How many keys are kept; the least recently used are dropped first.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: collections.OrderedDict[Key, list[tuple[ir.IRModule, Any]]] = (
            collections.OrderedDict()
        )

    def find(self, mod: ir.IRModule) -> Any:
        """What is kept of a module; None for an unknown one."""
        key = self._key(mod)
        if key not in self._kept:
            return None
        self._kept.move_to_end(key)
        # Structural hashes of unlike nodes meet in TVM: only the comparison decides.
        equal = (v for m, v in self._kept[key] if tvm_ffi.structural_equal(mod, m))
        return next(equal, None)

    def keep(self, mod: ir.IRModule, value: Any) -> None:
        """Keep a value of a module that is not known yet."""
        self._kept.setdefault(self._key(mod), []).append((mod, value))
        while len(self._kept) > self._size:
            self._kept.popitem(last=False)

    def _key(self, mod: ir.IRModule) -> Key:
        return int(tvm_ffi.structural_hash(mod)), str(target_in_scope())


class LibraryCache:
    """Compiled modules, of which each user makes machines of its own.

    Parameters
    ----------
    size : int
        How many modules are kept.
    """

    def __init__(self, size: int) -> None:
        self._known = _Known(size)

    def get(self, mod: ir.IRModule, place: str) -> Any:
        """The module compiled, at its first use.

        Raises
        ------
        EngineError
            DIST0606 when TVM cannot compile it.
        """
        library = self._known.find(mod)
        if library is None:
            library = compile_module(mod, place).jit()
            self._known.keep(mod, library)
        return library


class KernelCache:
    """Functions of small modules, ready to be called.

    A build costs as much as some kernels, so modules that are needed together are compiled
    together (:meth:`prepare`).

    Parameters
    ----------
    size : int
        How many modules are kept.

    Attributes
    ----------
    compiled : int
        How many modules were compiled.
    """

    def __init__(self, size: int = _CACHE_SIZE) -> None:
        self._known = _Known(size)
        self.compiled = 0

    def get(self, mod: ir.IRModule, place: str) -> Any:
        """The function of a module, compiled at its first use.

        Raises
        ------
        EngineError
            DIST0606 when TVM cannot compile it.
        """
        function = self._known.find(mod)
        if function is None:
            self._compile([(mod, place)])
            function = self._known.find(mod)
        return function

    def prepare(self, needed: Iterable[tuple[ir.IRModule, str]]) -> None:
        """Compile in one build those of the modules that are not known yet.

        They may share functions under a name only where these are the same. A module that
        cannot be compiled is left to :meth:`get`, which says where it comes from.
        """
        missing: list[tuple[ir.IRModule, str]] = []
        seen = _Known(_CACHE_SIZE)
        for mod, place in needed:
            if self._known.find(mod) is None and seen.find(mod) is None:
                seen.keep(mod, True)
                missing.append((mod, place))
        if len(missing) > 1:
            try:
                self._compile(missing)
            except EngineError as error:
                if error.code != "DIST0606":
                    raise

    def _compile(self, modules: Sequence[tuple[ir.IRModule, str]]) -> None:
        functions: dict[Any, Any] = {}
        for number, (mod, _) in enumerate(modules):
            for gv, function in mod.functions.items():
                if str(gv.name_hint) == KERNEL:
                    name = f"{KERNEL}_{number}"
                    functions[ir.GlobalVar(name)] = function.with_attr("global_symbol", name)
                else:
                    functions[gv] = function
        library = compile_module(ir.IRModule(functions), modules[0][1]).jit()
        machine = relax.VirtualMachine(library, tvm.cpu())
        for number, (mod, _) in enumerate(modules):
            self._known.keep(mod, machine[f"{KERNEL}_{number}"])
            self.compiled += 1
