# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Give each mesh the inputs that it would otherwise receive from another mesh in every step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tvm_ffi
from tvm import ir, relax

from tvm_distir.core.ir import mesh_shape, meshes, parse_placement, placement_text
from tvm_distir.core.ir.attributes import IO_ATTR, NUM_INPUT_ATTR
from tvm_distir.core.ir.operators import dist_op_name
from tvm_distir.core.ops import shard
from tvm_distir.core.passes import Rewrite, module_pass
from tvm_distir.core.rewriting import (
    all_bindings,
    op_name,
    rebuild,
    substitute,
    variables,
    with_body,
)
from tvm_distir.core.rewriting.native import pruned


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
        io = fn.attrs[IO_ATTR] if isinstance(fn, relax.Function) and _has_io(fn) else None
        if io is None:
            continue
        if "devices" in io or any("mesh" in row for row in [*io["inputs"], *io["outputs"]]):
            return mod
        number = int(io["mesh"])
        if number in programs:
            return mod
        programs[number] = _MeshProgram(gv, fn, mesh_shape(meshes(mod)[number]))
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
    return ir.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _has_io(fn: relax.Function) -> bool:
    return bool(fn.attrs) and IO_ATTR in fn.attrs


@dataclass
class _Origin:
    """Bindings and parameters from which a value follows.

    Attributes
    ----------
    bindings : list of Binding
        In order.
    params : list of Var
    """

    bindings: list[Any] = field(default_factory=list)
    params: list[Any] = field(default_factory=list)


class _MeshProgram:
    """Program of a mesh, and what is added to it.

    Parameters
    ----------
    gv : GlobalVar
    fn : relax.Function
        The entry function at level 5.
    shape : tuple of int
        Of the mesh.
    """

    def __init__(self, gv: Any, fn: relax.Function, shape: tuple[int, ...]) -> None:
        self.gv, self.fn, self.shape = gv, fn, shape
        self.bindings = list(all_bindings(fn.body))
        self._value_of = {b.var: b.value for b in self.bindings}
        self.params = list(fn.params)
        io = fn.attrs[IO_ATTR]
        self.rows = [dict(row.items()) for row in io["inputs"]]
        self._row_of = dict(zip(fn.params, self.rows, strict=True))
        self._more_counted = 0
        self._replaced: dict[Any, list[Any]] = {}
        self._env: dict[Any, Any] = {}

    def transfers(self, kind: str) -> dict[int, Any]:
        """Return the bindings of sends, or of receives, by their tags."""
        return {
            int(b.value.attrs["tag"]): b
            for b in self.bindings
            if isinstance(b.value, ir.Call) and dist_op_name(b.value) == kind
        }

    def take(self, source: _MeshProgram, send: Any, receive: Any) -> bool:
        """Compute a value that is received from the inputs of its source, if that is possible."""
        origin = source._origin(send.value.args[0])
        if origin is None or not all(map(source._is_static, origin.params)):
            return False
        labels = {
            side: parse_placement(str(send.value.attrs[side]))
            for side in ("placement", "peer_placement")
        }
        data = all(source._is_integer_data(param) for param in origin.params)
        unsharded = all(label < 0 for side in labels.values() for label in side)
        alike = self.shape == source.shape and len(set(labels.values())) == 1
        rows = {}
        if data and (alike or unsharded):
            rows = {param: dict(source._row_of[param]) for param in origin.params}
            if unsharded and not alike:
                whole = placement_text((-1,) * len(self.shape))
                if any(_is_sharded(row) for row in rows.values()):
                    return False
                rows = {param: {**row, "placement": whole} for param, row in rows.items()}
        elif len(origin.params) == 1 and _only_transposes(origin.bindings):
            (param,) = origin.params
            if not source._is_weight(param):
                return False
            before = _before_transposes(origin.bindings, labels["peer_placement"])
            rows = {param: {**source._row_of[param], "placement": placement_text(before)}}
        else:
            return False
        env = {param: self._input(param, row) for param, row in rows.items()}
        builder, bindings = relax.BlockBuilder(), []
        for binding in origin.bindings:
            origin_value = binding.value
            if isinstance(origin_value, ir.Call):  # its type follows from that of its new operands
                value = rebuild(
                    origin_value,
                    origin_value.op,
                    [substitute(arg, env) for arg in origin_value.args],
                )
            else:
                value = substitute(origin_value, env)
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

    def _origin(self, value: Any) -> _Origin | None:
        """Return what a value follows from; None where that is not computed by ops alone."""
        origin, seen = _Origin(), set()

        def visit(var: Any) -> bool:
            if var in seen:
                return True
            seen.add(var)
            if var in self._row_of:
                origin.params.append(var)
                return True
            origin_value = self._value_of.get(var)
            if origin_value is None:
                return False
            computed = isinstance(origin_value, ir.Call) and isinstance(origin_value.op, ir.Op)
            plain = (
                computed
                and dist_op_name(origin_value) is None
                and op_name(origin_value) not in _KERNELS
            )
            if not (plain or isinstance(origin_value, (relax.TupleGetItem, relax.Tuple))):
                return False
            if not all(visit(read) for read in variables(origin_value)):
                return False
            origin.bindings.append(relax.VarBinding(var, origin_value))
            return True

        return origin if isinstance(value, ir.Var) and visit(value) else None

    def _is_static(self, param: Any) -> bool:
        """Return whether the sizes of a parameter are known."""
        return not any(isinstance(size, str) for size in self._row_of[param]["shape"])

    def _is_integer_data(self, param: Any) -> bool:
        row = self._row_of[param]
        return str(row["dtype"]).startswith(("int", "uint", "bool")) and row.get("role") != "weight"

    def _input(self, param: Any, row: Mapping[str, Any]) -> Any:
        """Return the parameter for an input of another program, new where there is none."""
        index, place = int(row["index"]), parse_placement(str(row["placement"]))
        for have, known in zip(self.params, self.rows, strict=True):
            if int(known["index"]) == index and str(known["name"]) == str(row["name"]):
                same = parse_placement(str(known["placement"])) == place
                return have if same else relax.Var(param.name, _local_type(row, self.shape))
        return relax.Var(param.name, _local_type(row, self.shape))

    def _is_weight(self, param: Any) -> bool:
        role = self._row_of[param].get("role")
        if role is None and NUM_INPUT_ATTR in self.fn.attrs:
            return not self._is_counted(param)
        return bool(role == "weight")

    def _is_counted(self, param: Any) -> bool:
        """Return whether a parameter is among the first ones, which are no weights."""
        count = int((self.fn.attrs or {}).get(NUM_INPUT_ATTR, 0))
        return any(param.same_as(first) for first in self.fn.params[:count])

    def _add(self, row: Mapping[str, Any], var: Any, is_counted: bool) -> None:
        """Add a parameter at its place in the order of inputs."""
        if any(var.same_as(have) for have in self.params):
            return
        at = sum(int(known["index"]) <= int(row["index"]) for known in self.rows)
        self.params.insert(at, var)
        self.rows.insert(at, dict(row))
        self._more_counted += is_counted

    def written(self, removed: set[int]) -> tuple[Any, relax.Function]:
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
            new = substitute(value, env)
            if isinstance(binding, relax.MatchCast):
                bindings.append(relax.MatchCast(binding.var, new, binding.ty))
            else:
                bindings.append(relax.VarBinding(binding.var, new))
        result = substitute(self.fn.body.body, env)
        blocks, is_pure = pruned([relax.BindingBlock(bindings)], result)
        attrs = dict(self.fn.attrs.items())
        io = dict(attrs[IO_ATTR].items())
        if NUM_INPUT_ATTR in attrs:
            attrs[NUM_INPUT_ATTR] = int(attrs[NUM_INPUT_ATTR]) + self._more_counted
        attrs[IO_ATTR] = {**io, "inputs": self.rows}
        nodes = ir.make_node("ir.DictAttrs", **attrs)
        fn = with_body(self.fn, self.params, blocks, result, is_pure, nodes)
        gv = ir.GlobalVar(str(self.gv.name_hint))
        relax.expr._update_type(gv, fn.ty)
        return gv, fn


_KERNELS = ("call_tir", "call_dps_packed", "call_pure_packed", "call_packed", "call_tir_inplace")


def _is_sharded(row: Mapping[str, Any]) -> bool:
    return any(label >= 0 for label in parse_placement(str(row["placement"])))


def _only_transposes(bindings: list[Any]) -> bool:
    return all(op_name(binding.value) == "permute_dims" for binding in bindings)


def _before_transposes(bindings: list[Any], labels: tuple[int, ...]) -> tuple[int, ...]:
    """Return the placement of a weight whose transposes have the placement ``labels``."""
    for binding in reversed(bindings):
        value = binding.value
        axes = value.attrs.axes
        ndim = len(value.ty.shape)
        order = [int(a) for a in axes] if axes is not None else list(range(ndim))[::-1]
        labels = tuple(order[label] if label >= 0 else label for label in labels)
    return labels


def _local_type(row: Mapping[str, Any], sizes: tuple[int, ...]) -> Any:
    """Return the type of the part of an input on a device."""
    whole, dtype = [int(n) for n in row["shape"]], str(row["dtype"])
    part = shard(whole, parse_placement(str(row["placement"])), sizes, dtype)
    return relax.TensorType(list(part.local), dtype)
