# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Give each mesh the inputs that it would otherwise receive from another mesh in every step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, relax
from tvm.relax import Binding, Expr, Var
from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir import mesh_key, mesh_shape, meshes, parse_placement, placement_text
from tvm_distir.core.ir.attributes import IO_ATTR, NUM_INPUT_ATTR
from tvm_distir.core.ir.operators import dist_op_name
from tvm_distir.core.ops import shard
from tvm_distir.core.passes import Rewrite, module_pass
from tvm_distir.core.rewriting import (
    all_bindings,
    op_name,
    permutation,
    rebound,
    rebuild,
    retyped,
    substitute,
    variables,
    with_body,
    with_functions,
)
from tvm_distir.core.rewriting.native import pruned
from tvm_distir.support import reachable


@module_pass("local")
def ReplicateInputs() -> Rewrite:
    """Give each mesh the inputs that it would otherwise receive in every step.

    What follows from integer data alone, as positions and masks do from lengths, is computed on
    each mesh that reads it; and a weight that two meshes read, as a tied embedding, is stored on
    both. Programs in which devices belong to several meshes, and training steps, stay as they
    are. No number changes.

    Returns
    -------
    pass : tvm.transform.Pass
    """
    return replicated


def replicated(mod: ir.IRModule) -> ir.IRModule:
    """Apply :func:`ReplicateInputs`."""
    programs: dict[int, _MeshProgram] = {}
    for gv, fn in mod.functions.items():
        io = (fn.attrs or {}).get(IO_ATTR) if isinstance(fn, relax.Function) else None
        if io is None:
            continue
        if "devices" in io or any("mesh" in row for row in [*io["inputs"], *io["outputs"]]):
            return mod
        number = int(io["mesh"])
        if number in programs:
            return mod
        programs[number] = _MeshProgram(gv, fn, meshes(mod)[number])
    removed: dict[int, set[int]] = {number: set() for number in programs}
    for program in programs.values():
        for tag, receive in program.transfers("recv").items():
            for number, source in programs.items():
                send = source.transfers("send").get(tag)
                if send is not None and program.take(source, send, receive):
                    removed[number].add(tag)
    if not any(removed.values()):
        return mod
    functions = dict(mod.functions.items())
    for number, program in programs.items():
        del functions[program.gv]
        gv, fn = program.written(removed[number])
        functions[gv] = fn
    return with_functions(mod, functions)


@dataclass
class _Origin:
    """Bindings and parameters from which a value follows.

    Attributes
    ----------
    bindings : list of Binding
        In order.
    params : list of Var
    """

    bindings: list[Binding]
    params: list[Var]


class _MeshProgram:
    """Program of a mesh, and what is added to it.

    Parameters
    ----------
    gv : GlobalVar
    fn : relax.Function
        The entry function at level 5.
    mesh : DeviceMesh
    """

    def __init__(self, gv: ir.GlobalVar, fn: relax.Function, mesh: DeviceMesh) -> None:
        self.gv, self.fn, self.mesh, self.shape = gv, fn, mesh, mesh_shape(mesh)
        self.bindings = list(all_bindings(fn.body))
        self._value_of = {b.var: b.value for b in self.bindings}
        self.params = list(fn.params)
        self.rows = [dict(row.items()) for row in fn.attrs[IO_ATTR]["inputs"]]
        self._row_of = dict(zip(fn.params, self.rows, strict=True))
        self._more_counted = 0
        self._replaced: dict[Var, list[Binding]] = {}
        self._env: dict[Var, Var] = {}

    def transfers(self, kind: str) -> dict[int, Binding]:
        """Return the bindings of sends, or of receives, by their tags."""
        return {
            int(b.value.attrs["tag"]): b
            for b in self.bindings
            if isinstance(b.value, ir.Call) and dist_op_name(b.value) == kind
        }

    def take(self, source: _MeshProgram, send: Binding, receive: Binding) -> bool:
        """Compute a value that is received from the inputs of its source, if that is possible."""
        origin = source._origin(send.value.args[0])
        if origin is None or not all(map(source._is_static, origin.params)):
            return False
        rows = self._new_rows(source, origin, send.value)
        if rows is None:
            return False
        env = {param: self._input(param, row) for param, row in rows.items()}
        builder, bindings = relax.BlockBuilder(), []
        for binding in origin.bindings:
            value = binding.value
            if isinstance(value, ir.Call):  # its type follows from that of its new operands
                value = rebuild(value, value.op, [substitute(arg, env) for arg in value.args])
            else:
                value = substitute(value, env)
            value = builder.normalize(value)
            env[binding.var] = var = relax.Var(binding.var.name, value.ty)
            bindings.append(relax.VarBinding(var, value))
        result = env.get(send.value.args[0], send.value.args[0])
        if not tvm_ffi.structural_equal(result.ty, receive.var.ty):
            return False
        for param, row in rows.items():
            self._add(row, env[param], source._is_counted(param))
        self._replaced[receive.var], self._env[receive.var] = bindings, result
        return True

    def _new_rows(
        self, source: _MeshProgram, origin: _Origin, send: ir.Call
    ) -> dict[Var, dict[str, Any]] | None:
        """Return how this program has the inputs that a sent value follows from, if it can."""
        ends = [mesh_key(send.attrs[side]) for side in ("device_mesh", "peer_mesh")]
        if ends != [mesh_key(source.mesh), mesh_key(self.mesh)]:
            return None  # the placements are those on other views of the meshes
        sent, received = (
            parse_placement(str(send.attrs[side])) for side in ("placement", "peer_placement")
        )
        rows = {param: dict(source._row_of[param]) for param in origin.params}
        unsharded = all(label < 0 for label in (*sent, *received))
        is_equal = self.shape == source.shape and sent == received
        if all(map(source._is_integer_data, rows)) and (is_equal or unsharded):
            if is_equal:
                return rows
            replicated = placement_text((-1,) * len(self.shape))
            if any(_is_sharded(row) for row in rows.values()):
                return None
            return {param: {**row, "placement": replicated} for param, row in rows.items()}
        transposes = all(op_name(binding.value) == "permute_dims" for binding in origin.bindings)
        if len(rows) != 1 or not transposes or not source._is_weight(origin.params[0]):
            return None
        before = placement_text(_before_transposes(origin.bindings, received))
        return {param: {**row, "placement": before} for param, row in rows.items()}

    def _origin(self, value: Expr) -> _Origin | None:
        """Return what a value follows from; None where that is not computed by ops alone."""

        def operands(var: Var) -> list[Expr]:
            bound = self._value_of.get(var)
            return variables(bound) if _is_computed(bound) else []

        reached = set(reachable([value], operands)) if isinstance(value, ir.Var) else set()
        params = [param for param in self._row_of if param in reached]
        bindings = [b for b in self.bindings if b.var in reached]
        known = len(params) + len(bindings) == len(reached) > 0
        plain = known and all(_is_computed(b.value) for b in bindings)
        return _Origin(bindings, params) if plain else None

    def _is_static(self, param: Var) -> bool:
        """Return whether the sizes of a parameter are known."""
        return not any(isinstance(size, str) for size in self._row_of[param]["shape"])

    def _is_integer_data(self, param: Var) -> bool:
        row = self._row_of[param]
        return str(row["dtype"]).startswith(("int", "uint", "bool")) and row.get("role") != "weight"

    def _input(self, param: Var, row: Mapping[str, Any]) -> Var:
        """Return the parameter for an input of another program, new where there is none."""
        index, labels = int(row["index"]), parse_placement(str(row["placement"]))
        for have, known in zip(self.params, self.rows, strict=True):
            if int(known["index"]) == index and str(known["name"]) == str(row["name"]):
                same = parse_placement(str(known["placement"])) == labels
                return have if same else relax.Var(param.name, _local_type(row, self.shape))
        return relax.Var(param.name, _local_type(row, self.shape))

    def _is_weight(self, param: Var) -> bool:
        role = self._row_of[param].get("role")
        if role is None and NUM_INPUT_ATTR in self.fn.attrs:
            return not self._is_counted(param)
        return bool(role == "weight")

    def _is_counted(self, param: Var) -> bool:
        """Return whether a parameter is among the first ones, which are no weights."""
        count = int((self.fn.attrs or {}).get(NUM_INPUT_ATTR, 0))
        return any(param.same_as(first) for first in self.fn.params[:count])

    def _add(self, row: Mapping[str, Any], var: Var, is_counted: bool) -> None:
        """Add a parameter at its place in the order of inputs."""
        if any(var.same_as(have) for have in self.params):
            return
        at = sum(int(known["index"]) <= int(row["index"]) for known in self.rows)
        self.params.insert(at, var)
        self.rows.insert(at, dict(row))
        self._more_counted += is_counted

    def written(self, removed: set[int]) -> tuple[ir.GlobalVar, relax.Function]:
        """Return the program without the sends of some tags, and its variable."""
        env, bindings = dict(self._env), []
        for binding in self.bindings:
            if binding.var in self._replaced:
                bindings += self._replaced[binding.var]
                continue
            value = binding.value
            if isinstance(value, ir.Call) and dist_op_name(value) == "send":
                if int(value.attrs["tag"]) in removed:
                    continue
            bindings.append(rebound(binding, substitute(value, env)))
        result = substitute(self.fn.body.body, env)
        blocks, is_pure = pruned([relax.BindingBlock(bindings)], result)
        io = {**dict(self.fn.attrs[IO_ATTR].items()), "inputs": self.rows}
        fn = with_body(self.fn, self.params, blocks, result, is_pure).with_attr(IO_ATTR, io)
        if NUM_INPUT_ATTR in fn.attrs:
            count = int(fn.attrs[NUM_INPUT_ATTR]) + self._more_counted
            fn = fn.with_attr(NUM_INPUT_ATTR, count)
        return retyped(self.gv, fn.ty), fn


_KERNELS = ("call_tir", "call_dps_packed", "call_pure_packed", "call_packed", "call_tir_inplace")


def _is_computed(value: Expr) -> bool:
    """Return whether a value follows from its operands alone: by an op of Relax, or as a tuple."""
    if not isinstance(value, ir.Call) or not isinstance(value.op, ir.Op):
        return isinstance(value, (relax.TupleGetItem, relax.Tuple))
    return dist_op_name(value) is None and op_name(value) not in _KERNELS


def _is_sharded(row: Mapping[str, Any]) -> bool:
    return any(label >= 0 for label in parse_placement(str(row["placement"])))


def _before_transposes(bindings: list[Binding], labels: tuple[int, ...]) -> tuple[int, ...]:
    """Return the placement of a weight whose transposes have the placement ``labels``."""
    for binding in reversed(bindings):
        order = permutation(binding.value)
        labels = tuple(order[label] if label >= 0 else label for label in labels)
    return labels


def _local_type(row: Mapping[str, Any], sizes: tuple[int, ...]) -> ir.Type:
    """Return the type of the part of an input on a device."""
    full, dtype = [int(n) for n in row["shape"]], str(row["dtype"])
    part = shard(full, parse_placement(str(row["placement"])), sizes, dtype)
    return relax.TensorType(list(part.local), dtype)
