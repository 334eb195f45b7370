# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run modules of traced ranks, and return every value of every rank."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import ir, relax

from tvm_distir.core.ir import AXES_ATTR, MESH_INFO
from tvm_distir.core.ir.attributes import IO_ATTR
from tvm_distir.core.ops import input_index_ranges
from tvm_distir.core.rewriting import op_name, tuple_of
from tvm_distir.execution.runtime.engines.virtual.engine import VirtualEngine
from tvm_distir.execution.runtime.program.compiled import KernelCache
from tvm_distir.execution.runtime.program.lowered import LoweredProgram
from tvm_distir.execution.runtime.program.tensors import Array, to_array, to_tensor
from tvm_distir.execution.verification.float32_reference import widened
from tvm_distir.models import LINES_ATTR, TRACE_ATTR
from tvm_distir.support import update_type

from .other_modules import as_trace

Feeds = Mapping[int, Mapping[str, Array]]
"""Inputs by rank and name."""
WIDE = "float64"
_KERNELS = KernelCache(1 << 13)


@dataclass(frozen=True)
class Code:
    """The function of a role, by names.

    Attributes
    ----------
    function : str
    ranks : tuple of int
    inputs : dict of str to Var
        The parameters, by their names.
    bindings : list of VarBinding
    outputs : dict of str to Expr
    lines : dict of str to str
        The place in code of values.
    """

    function: str
    ranks: tuple[int, ...]
    inputs: dict[str, relax.Var]
    bindings: list[relax.VarBinding]
    outputs: dict[str, relax.Expr]
    lines: dict[str, str]

    def operations(self) -> tuple[tuple[str, str], ...]:
        """Return names and ops of all values: equal for ranks that differ in numbers alone."""
        return tuple((str(b.var.name), op_name(b.value)) for b in self.bindings)


@dataclass
class Values:
    """Results of a run, by rank and name."""

    values: dict[int, dict[str, Array]] = field(default_factory=dict)
    outputs: dict[int, dict[str, Array]] = field(default_factory=dict)


class TracedModule:
    """A module of traced ranks, with floats of 64 bits.

    Parameters
    ----------
    mod : IRModule
        What ``td.trace_ranks`` returned, or what :func:`.other_modules.as_trace` takes.

    Raises
    ------
    ModelError
        DIST0365 where it is another module.
    """

    def __init__(self, mod: ir.IRModule) -> None:
        mod, self.shardings, self.output_shardings = as_trace(mod)
        attrs: Any = mod.attrs
        self.mod = relax.transform.ToNonDataflow()(widened(mod, WIDE))
        names = attrs[TRACE_ATTR]
        self.output_names = [str(n) for n in names["outputs"]]
        self._integers = {str(k): np.array(v) for k, v in names["integers"].items()}
        self.mesh = self.mod.global_infos[MESH_INFO][0]
        sizes = [int(n) for n in self.mesh.shape]
        self.axes = dict(zip([str(a) for a in attrs[AXES_ATTR][0]], sizes))
        self.codes = [
            self._code(str(gv.name_hint), fn)
            for gv, fn in self.mod.functions.items()
            if isinstance(fn, relax.Function) and IO_ATTR in (fn.attrs or {})
        ]

    def value_bytes(self) -> int:
        """Return the bytes of all values of all ranks."""
        return sum(
            8 * math.prod(int(n) for n in binding.var.ty.shape) * len(code.ranks)
            for code in self.codes
            for binding in code.bindings
            if isinstance(binding.var.ty, relax.TensorType)
        )

    def integers(self, name: str, shape: list[int], random: np.random.Generator) -> Array:
        """Return an input of integers: that of the trace, or indices that all its readers take."""
        if name in self._integers:
            return self._integers[name].reshape(shape)
        ranges = input_index_ranges(self.mod, self.mod[self.codes[0].function])
        allowed = ranges.get((list(self.codes[0].inputs).index(name), ""))
        return random.integers(0, 2 if allowed is None else allowed.high, shape)

    def _code(self, name: str, fn: relax.Function) -> Code:
        io = fn.attrs[IO_ATTR]
        fields = list(fn.body.body.fields) if isinstance(fn.body.body, relax.Tuple) else None
        names = [self.output_names[int(port["index"])] for port in io["outputs"]]
        return Code(
            name,
            tuple(int(d) for d in io["devices"]),
            {str(p["name"]): v for p, v in zip(io["inputs"], fn.params)},
            [binding for block in fn.body.blocks for binding in block.bindings],
            dict(zip(names, fields or [fn.body.body], strict=True)),
            {str(k): str(v) for k, v in fn.attrs[LINES_ATTR].items()},
        )

    def families(self) -> list[list[Code]]:
        """Return the codes in groups of the same ops."""
        listed: dict[Any, list[Code]] = {}
        for code in self.codes:
            listed.setdefault(code.operations(), []).append(code)
        return list(listed.values())

    def with_codes(self, codes: list[Code], returns_all: bool = False) -> ir.IRModule:
        """Return the module with other bindings, whose functions may return every value."""
        functions = {}
        for code in codes:
            old = self.mod[code.function]
            returned = [*code.outputs.values()]
            if returns_all:
                tensors = (relax.TensorType,)
                returned += [b.var for b in code.bindings if isinstance(b.var.ty, tensors)]
            body = relax.SeqExpr([relax.BindingBlock(code.bindings)], tuple_of(returned))
            update_type(body, body.body.ty)
            impure = relax.Function(list(old.params), body, body.body.ty, False)
            fn = impure.with_attr(IO_ATTR, {**dict(old.attrs[IO_ATTR].items()), "outputs": []})
            functions[ir.GlobalVar(code.function)] = fn
        return ir.IRModule(functions, attrs=self.mod.attrs, global_infos=self.mod.global_infos)

    def run(self, feeds: Feeds, codes: list[Code] | None = None, every: bool = False) -> Values:
        """Run all ranks on the engine ``virtual``.

        Parameters
        ----------
        feeds : mapping of rank to mapping of name to array
        codes : list of Code, optional
            Changed programs.
        every : bool
            Return all values, not the outputs alone.

        Raises
        ------
        EngineError
            DIST0610 ranks wait for each other forever, DIST0611 they call other collectives.
        """
        used = codes or self.codes
        program = LoweredProgram(self.with_codes(used, every))
        tensors = {
            rank: [to_tensor(feeds[rank][name]) for name in code.inputs]
            for code in used
            for rank in code.ranks
        }
        results = VirtualEngine(_KERNELS, single=True).run_tensors(program, tensors)
        done = Values()
        for code in used:
            tensors_of = [b.var for b in code.bindings if isinstance(b.var.ty, relax.TensorType)]
            names = [str(var.name) for var in tensors_of]
            for rank in code.ranks:
                arrays = [to_array(value) for value in results[rank]]
                done.outputs[rank] = dict(zip(code.outputs, arrays))
                done.values[rank] = dict(feeds[rank])
                done.values[rank].update(zip(names, arrays[len(code.outputs) :]))
        return done
