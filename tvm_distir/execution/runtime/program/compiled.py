# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Cache compiled modules, and compile several small modules at once."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tvm_ffi
from tvm import ir, relax, tirx

from tvm_distir.support import EngineError, ForkSafeLock

from .compilation import compile_module, compile_turn
from .machines import Machines
from .shared_kernels import SharedKernels
from .targets import target_in_scope

_CACHE_SIZE = 256

SHARED = SharedKernels()
"""Kernels that the caches of a process share where nobody sees their names."""

KERNEL = "segment"
"""Name of the function in each module of a :class:`KernelCache`."""

Key = tuple[int, str]
"""Structural hash of a module, and the target it was compiled for."""


class _ModuleMap:
    """A map of values by module and target; modules with equal hashes are compared.

    Threads may use it at once.

    Parameters
    ----------
    size : int
        The maximum number of stored keys; the least recently used are dropped first.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: collections.OrderedDict[Key, list[tuple[ir.IRModule, object]]] = (
            collections.OrderedDict()
        )
        self._turn = ForkSafeLock()

    def find(self, mod: ir.IRModule) -> Any:
        """Return the value remembered for a module; None for an unknown module."""
        key = self._key(mod)
        with self._turn():
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            candidates = tuple(self._entries[key])
        # Structural hashes of unlike nodes meet in TVM: only the comparison decides.
        return next((v for m, v in candidates if tvm_ffi.structural_equal(mod, m)), None)

    def keep(self, mod: ir.IRModule, value: object) -> None:
        """Store a value of a module that is not known yet."""
        key = self._key(mod)
        with self._turn():
            self._entries.setdefault(key, []).append((mod, value))
            while len(self._entries) > self._size:
                self._entries.popitem(last=False)

    def find_or_make(self, mod: ir.IRModule, make: Callable[[], object]) -> Any:
        """Return the value remembered for a module, computed once by a single thread."""
        value = self.find(mod)
        if value is None:
            with compile_turn():
                value = self.find(mod)  # another thread may have made it meanwhile
                if value is None:
                    value = make()
                    self.keep(mod, value)
        return value

    def _key(self, mod: ir.IRModule) -> Key:
        return int(tvm_ffi.structural_hash(mod)), str(target_in_scope())


class LibraryCache:
    """A cache of compiled modules, of which each user makes separate machines.

    Parameters
    ----------
    size : int
        The maximum number of stored modules.
    kernels : SharedKernels, optional
        Kernels that the modules share with others; their names are then not those of the modules.
    """

    def __init__(self, size: int, kernels: SharedKernels | None = None) -> None:
        self._cache = _ModuleMap(size)
        self._kernels = kernels

    def get(self, mod: ir.IRModule, location: str) -> Any:
        """Return the module compiled, at its first use.

        Raises
        ------
        EngineError
            DIST0606 when TVM cannot compile it.
        """
        return self._cache.find_or_make(
            mod, lambda: compile_module(mod, location, self._kernels).mod
        )


class KernelCache:
    """A cache of compiled functions of small modules.

    A build costs as much as some kernels, so modules that are needed together are compiled
    together (:meth:`prepare`).

    Parameters
    ----------
    size : int
        The maximum number of stored modules.

    Attributes
    ----------
    compiled : int
        The number of modules that were compiled.
    """

    def __init__(self, size: int = _CACHE_SIZE) -> None:
        self._cache = _ModuleMap(size)
        self.compiled = 0

    def get(self, mod: ir.IRModule, location: str) -> Any:
        """Return the function of a module, compiled at its first use.

        Raises
        ------
        EngineError
            DIST0606 when TVM cannot compile it.
        """
        return self._cache.find_or_make(mod, lambda: self._compile([(mod, location)])[0])

    def prepare(self, needed: Iterable[tuple[ir.IRModule, str]]) -> None:
        """Compile the modules that are not known yet in a single build.

        They may share functions under a name only where these are the same. A module that
        cannot be compiled is left to :meth:`get`, which says where it comes from.
        """
        requests = list(needed)
        if len(self._missing(requests)) < 2:
            return
        with compile_turn():
            missing = self._missing(requests)  # another thread may have compiled some meanwhile
            if len(missing) < 2:
                return
            try:
                for (mod, _), function in zip(missing, self._compile(missing)):
                    self._cache.keep(mod, function)
            except EngineError as error:
                if error.code != "DIST0606":
                    raise

    def _missing(
        self, requests: Iterable[tuple[ir.IRModule, str]]
    ) -> list[tuple[ir.IRModule, str]]:
        """Return the modules that are not known, each once."""
        missing: list[tuple[ir.IRModule, str]] = []
        seen = _ModuleMap(_CACHE_SIZE)
        for mod, location in requests:
            if self._cache.find(mod) is None and seen.find(mod) is None:
                seen.keep(mod, True)
                missing.append((mod, location))
        return missing

    def _compile(self, modules: Sequence[tuple[ir.IRModule, str]]) -> list[Callable[..., Any]]:
        """Compile modules in one build; returns the function of each, which selects its machine."""
        functions: dict[ir.GlobalVar, relax.Function | tirx.PrimFunc] = {}
        for number, (mod, _) in enumerate(modules):
            for gv, function in mod.functions.items():
                if str(gv.name_hint) == KERNEL:
                    name = f"{KERNEL}_{number}"
                    functions[ir.GlobalVar(name)] = function.with_attr("global_symbol", name)
                else:
                    functions[gv] = function
        machines = Machines(compile_module(ir.IRModule(functions), modules[0][1], SHARED).mod)
        self.compiled += len(modules)
        return [
            functools.partial(machines.call, f"{KERNEL}_{number}") for number in range(len(modules))
        ]
