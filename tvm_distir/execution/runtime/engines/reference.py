# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run the single-device program that distributed programs are compared with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax
from tvm.relax.distributed import DTensorType

from tvm_distir.core.ir import is_object, named_leaves, relax_functions
from tvm_distir.core.ops import input_index_ranges
from tvm_distir.core.rewriting import (
    all_bindings,
    called_name,
    entry_of,
    location_of,
    replaced_calls,
)
from tvm_distir.execution.runtime.program.compiled import SHARED, LibraryCache
from tvm_distir.execution.runtime.program.input_faults import index_fault
from tvm_distir.execution.runtime.program.machines import Machines
from tvm_distir.execution.runtime.program.targets import check_engine_runs, target_in_scope
from tvm_distir.execution.runtime.program.tensors import Array, flat_tensors, to_array, to_tensor
from tvm_distir.support import EngineError

_LIBRARIES = LibraryCache(4, SHARED)
"""The cache of compiled references, since a model is verified under several plans; it is small,
because a library holds the constants."""


def strip_annotations(mod: ir.IRModule) -> ir.IRModule:
    """Return the module without its annotations: level 2 to level 1. The input is not changed."""
    return replaced_calls(mod, {"relax.dist.annotate_sharding": lambda _, call: call.args[0]})


def _argument(ty: ir.Type, arrays: Iterator[Array]) -> Any:
    """Return the next arrays as an argument of a type: a tensor, or a (nested) tuple of them."""
    if isinstance(ty, relax.TupleType):
        return tuple(_argument(field, arrays) for field in ty.fields)
    if is_object(ty):  # a number stands for it
        return int(next(arrays))
    return to_tensor(next(arrays))


def _result(value: Any, index: int) -> Array:
    """Return a leaf of the result as an array; numbers and shapes are arrays of ``int64``."""
    if isinstance(value, tvm.runtime.Tensor):
        return cast("Array", to_array(value))
    if isinstance(value, int | float | tvm_ffi.Shape):
        return np.asarray(value, None if isinstance(value, float) else "int64")
    problem = f"the output is an object ({type(value).__name__}), which has no values to compare"
    remedy = "Return tensors, or objects that are inputs."
    raise EngineError("DIST0605", problem, location=f"reference/output {index}", remedy=remedy)


def _refuse_collectives(mod: ir.IRModule) -> None:
    for gv, fn in relax_functions(mod):
        for binding in all_bindings(fn.body):
            name = called_name(binding.value) if isinstance(binding.value, ir.Call) else ""
            if name.startswith("relax.ccl."):
                raise EngineError(
                    "DIST0605",
                    "the module has a collective of several devices: there is no single-device "
                    "program",
                    location=location_of(str(gv.name_hint), binding.var, binding.value),
                    remedy="Give the module of a single device: td.distribute writes its "
                    "collectives.",
                )


class Reference:
    """A module compiled for a single device; several threads may run it at once.

    Parameters
    ----------
    mod : IRModule
        The module, at level 1 or 2. Its entry is run: ``main``, or the only public function.

    Attributes
    ----------
    mod : IRModule
        The module.

    Raises
    ------
    EngineError
        DIST0605 for a module that is already distributed, DIST0606 when TVM cannot compile it,
        DIST0609 where the target in scope is no CPU.
    ModelError
        DIST0341 where there is no entry, or several of which none is ``main``.
    """

    def __init__(self, mod: ir.IRModule) -> None:
        entry = entry_of(mod)
        if any(isinstance(p.ty, DTensorType) for p in mod[entry].params):
            problem = "the module is already distributed: there is no single-device program"
            raise EngineError(
                "DIST0605", problem, location=entry, remedy="Give the original module."
            )
        _refuse_collectives(mod)
        check_engine_runs(str(target_in_scope()), "reference")
        self.mod, self._entry = mod, entry
        self._types = [param.ty for param in mod[entry].params]
        self._machines = Machines(_LIBRARIES.get(strip_annotations(mod), "reference"))
        self._names = [
            (position, name, suffix)
            for position, param in enumerate(mod[entry].params)
            for (name, _), (suffix, _) in zip(
                named_leaves(str(param.name), param.ty), named_leaves("", param.ty)
            )
        ]
        self._indices = input_index_ranges(mod, mod[entry])

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Return the flattened results for full arrays: the tensors of the parameters, in order.

        Raises
        ------
        EngineError
            DIST0619 for indices that are outside of the dim they index, DIST0605 for a result
            that is an object of no input, DIST0625 where a call of the module fails.
        """
        for (position, name, suffix), array in zip(self._names, inputs):
            allowed = self._indices.get((position, suffix))
            location = f'input {position} "{name}"'
            fault = index_fault(array, allowed.numbers(), location) if allowed else None
            if fault is not None:
                raise fault
        arrays = iter(inputs)
        arguments = [_argument(ty, arrays) for ty in self._types]
        try:
            result = self._machines.call(self._entry, *arguments)
        except (RuntimeError, TypeError, ValueError) as error:
            raise EngineError(
                "DIST0625",
                next((line for line in str(error).splitlines() if line), type(error).__name__),
                location=f"reference/{self._entry}",
                remedy="Run the module by TVM on one device first, and repair what it calls.",
            ) from error
        return [_result(value, index) for index, value in enumerate(flat_tensors(result))]
