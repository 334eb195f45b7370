# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""One function, for one mesh, from level 4 to level 5."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import ir, relax
from tvm.relax.distributed import DTensorType

from ...errors import LevelError, LoweringError, PropagationError
from ...ir import (
    Labels,
    R,
    flat_types,
    labels_of,
    mesh_key,
    mesh_shape,
    ops,
    static_shape,
    tensor_type,
)
from ...ir.ops import dist_op_name
from ...rules import rule_of
from ..legalize.emit import (
    TIR_CALLS,
    BlockWriter,
    bindings_of,
    is_tensors,
    leaves_of,
    place_of,
    rebuild,
    substitute,
    tensor_args,
    typed,
    with_body,
)
from ..legalize.planner import check_sharding
from ..legalize.terms import (
    Terms,
    attribute_axes,
    axes_of,
    call_form,
    carried,
    sums,
    within,
    without,
)
from .calls import LocalCall, Operand, Shard, expected_mismatch, handlers, shard
from .collectives import collective, sliced
from .padding import protect, stays_zero
from .prune import pruned
from .tir import call_tir

REPLICA_TO_SHARD = "relax.dist.redistribute_replica_to_shard"
REDUCERS = ("all_reduce", "reduce_scatter")


@dataclass
class Context:
    """What all functions of a module share.

    Attributes
    ----------
    mod : IRModule
        At level 4.
    keys : list of mesh keys
        Per mesh of the module.
    callees : dict of GlobalVar to GlobalVar
        Private functions lowered so far, and what takes their place.
    known : list of (handle, position)
        Mesh objects met so far, for speed only.
    prim_funcs : dict
        PrimFuncs cut to local shapes, see :mod:`.tir`.
    """

    mod: ir.IRModule
    keys: list[Any]
    callees: dict[Any, Any]
    known: list[tuple[int, int]] = field(default_factory=list)
    prim_funcs: dict[Any, Any] = field(default_factory=dict)

    def mesh_number(self, mesh: Any) -> int:
        """Position of a mesh in the module."""
        for other, number in self.known:
            if other == mesh.__chandle__():
                return number
        key = mesh_key(mesh)
        if key not in self.keys:
            raise LoweringError(
                "DIST0503",
                f"a mesh of shape {key[0]} is not among the module's global_infos",
                remedy='Add it: mod.update_global_info("mesh", meshes).',
            )
        self.known.append((mesh.__chandle__(), self.keys.index(key)))
        return self.known[-1][1]

    def meshes_of(self, ty: Any) -> list[int]:
        """Meshes a type's DTensors lie on, sorted."""
        found = {
            self.mesh_number(t.device_mesh) for t in flat_types(ty) if isinstance(t, DTensorType)
        }
        return sorted(found)


@dataclass(frozen=True)
class Output:
    """A flattened result that the function gives on its mesh: position and level-4 type."""

    index: int
    ty: Any


class LocalFunction:
    """Lowers one function for one mesh.

    Parameters
    ----------
    context : Context
    name : str
        Name of the function at level 4.
    fn : relax.Function
    number : int
        The mesh.
    entry : bool
        Whether it is a public function: its inputs arrive padded with zeros, its tuple
        parameters and results are flattened.
    """

    def __init__(
        self, context: Context, name: str, fn: relax.Function, number: int, entry: bool
    ) -> None:
        self.context, self.name, self.fn = context, name, fn
        self.number, self.entry = number, entry
        self.builder = relax.BlockBuilder()
        self.env: dict[Any, Any] = {}
        self.zero: dict[tuple[Any, int], bool] = {}
        self.terms: dict[tuple[Any, int], Terms] = {}
        self.tuples: dict[Any, list[Any]] = {}
        self.constants: dict[Any, Any] = {}
        self.caches: dict[Any, Any] = {}
        self.shards: dict[Any, Shard] = {}
        self.writer = BlockWriter(self.builder, False)
        self.mesh: Any = None
        self.sizes: tuple[int, ...] = ()
        self.params: list[Any] = []
        self.param_leaves: list[tuple[int, str, Any]] = []
        self.outputs: list[Output] = []

    # -- types

    def _fault(self, code: str, what: str, var: Any, value: Any, remedy: str) -> LoweringError:
        return LoweringError(code, what, place=place_of(self.name, var, value), remedy=remedy)

    def _level(self, what: str, var: Any, value: Any) -> LevelError:
        return LevelError(
            "DIST0451",
            what,
            place=place_of(self.name, var, value),
            remedy="Run LegalizeRedistribute first.",
        )

    def shard_of(self, ty: Any, place: str) -> Shard:
        """Shard of a level-4 tensor type on this mesh."""
        shape = static_shape(ty)
        if shape is None or not all(isinstance(n, int) for n in shape):
            raise LoweringError(
                "DIST0502",
                f"the shape {None if shape is None else [str(n) for n in shape]} is not constant",
                place=place,
                remedy="Bind its sizes before distributing.",
            )
        if isinstance(ty, DTensorType):
            labels = labels_of(ty.placement)
            key = (shape, labels, str(ty.tensor_ty.dtype))
        else:
            labels = (R,) * len(self.sizes)
            key = (shape, labels, str(ty.dtype))
        found = self.shards.get(key)
        if found is None:
            why = check_sharding(shape, labels, self.sizes)
            if why:
                raise LoweringError(
                    "DIST0501", why, place=place, remedy="Pad the dim, or shard it by one axis."
                )
            found = self.shards[key] = shard(shape, labels, self.sizes, key[2])
        return found

    def local_type(self, ty: Any, place: str) -> Any:
        """Level-5 type of a level-4 type."""
        if isinstance(ty, relax.TupleType):
            return relax.TupleType([self.local_type(t, place) for t in ty.fields])
        if isinstance(ty, DTensorType):
            own = self.shard_of(ty, place)
            return relax.TensorType(list(own.local), ty.tensor_ty.dtype, ty.tensor_ty.vdevice)
        if isinstance(ty, relax.TensorType):
            raise LevelError(
                "DIST0451",
                f"a plain {ty} among DTensors",
                place=place,
                remedy="Run PropagateSharding first: every tensor must have a mesh.",
            )
        return ty

    # -- variables

    def _declare(self, var: Any) -> Any:
        ty = self.local_type(var.ty, f"{self.name}/{var.name}")
        new = type(var)(var.name, ty)
        self.env[var] = new
        return new

    def _bind(self, var: Any, value: Any, terms: Sequence[Terms], zero: bool) -> None:
        """Bind a local value, or let the variable be an existing one."""
        self._note(var, terms, zero)
        if isinstance(value, ir.Var):
            leaves = isinstance(value, relax.DataflowVar) and not isinstance(
                var, relax.DataflowVar
            )
            if not leaves:
                self.env[var] = value
                return
        new = type(var)(var.name, value.ty)
        self.env[var] = new
        self.writer.bind(new, value)

    def _note(self, var: Any, terms: Sequence[Terms], zero: bool) -> None:
        for i, found in enumerate(terms):
            if found:
                self.terms[(var, i)] = found
        for i in range(len(flat_types(var.ty))):
            if zero:
                self.zero[(var, i)] = True

    def _terms_of(self, expr: Any, number: int) -> Terms:
        return self.terms.get((expr, number), ()) if isinstance(expr, ir.Var) else ()

    def _zero_of(self, expr: Any, number: int) -> bool:
        if isinstance(expr, ir.GenericConst):
            return True
        return self.zero.get((expr, number), False)

    def _constant(self, expr: Any, labels: Labels) -> Any:
        """Local form of a constant: itself, or my slice of it."""
        shape = static_shape(expr.ty)
        if shape is None:
            raise LoweringError(
                "DIST0502", "a constant of unknown shape", place=self.name, remedy="Give it one."
            )
        cut = tuple(x if x >= 0 and self.sizes[a] > 1 else R for a, x in enumerate(labels))
        key = (expr, cut)
        if key not in self.constants:
            local: Any = expr
            if isinstance(expr.ty, DTensorType):
                local = ir.GenericConst(expr.value, expr.ty.tensor_ty)
            if any(x != R for x in cut):
                local = sliced(self.writer, local, self.mesh, cut, shape, "constant")
            self.constants[key] = local
        return self.constants[key]

    def _local(self, expr: Any) -> Any:
        """Local form of an expression in normal form whose constants are whole."""
        if isinstance(expr, ir.GenericConst):
            labels = (R,) * len(self.sizes)
            if isinstance(expr.ty, DTensorType):
                labels = labels_of(expr.ty.placement)
            return self._constant(expr, labels)
        if isinstance(expr, relax.Tuple):
            fields = [self._local(f) for f in expr.fields]
            return typed(relax.Tuple(fields), relax.TupleType([f.ty for f in fields]))
        if isinstance(expr, ir.Var):
            return self._variable(expr)
        return substitute(expr, self.env)

    def _variable(self, var: Any) -> Any:
        if var in self.env:
            return self.env[var]
        if var in self.tuples:
            return self._local(relax.Tuple(self.tuples[var]))
        raise LoweringError(
            "DIST0503",
            f'"{var.name}" lies on another mesh than its reader',
            place=self.name,
            remedy="Redistribute it to the reader's mesh.",
        )

    # -- bindings

    def _here(self, var: Any, value: Any) -> bool:
        where = self.context.meshes_of(var.ty)
        if isinstance(value, relax.Tuple) and len(where) > 1:
            self.tuples[var] = list(value.fields)
            self._note(var, [self._terms_of(e, n) for e, n, _ in leaves_of(value)], False)
            return False
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in self.tuples:
            item = self.tuples[value.tuple_value][int(value.index)]
            if self.number in where:
                terms = [self._terms_of(e, n) for e, n, _ in leaves_of(item)]
                self._bind(var, self._local(item), terms, False)
            return False
        if not where:
            return not is_tensors(var.ty) or not isinstance(value, ir.Call)
        return self.number in where

    def _visit(self, var: Any, value: Any) -> None:
        if not self._here(var, value):
            return
        kind = dist_op_name(value)
        name = str(value.op.name) if isinstance(value, ir.Call) and isinstance(
            value.op, ir.Op
        ) else ""
        if name in ("relax.dist.redistribute", "relax.dist.annotate_sharding"):
            raise self._level("the module is not legalized yet", var, value)
        if kind in ("send", "recv"):
            self._transfer(var, value, kind)
        elif kind is not None:
            self._collective(var, value, kind)
        elif name == REPLICA_TO_SHARD:
            attrs = {
                "device_mesh": var.ty.device_mesh, "mesh_axis": 0, "dim": int(value.attrs.axis)
            }
            self._move(var, value, "local_slice", attrs)
        elif isinstance(value, ir.Call) and isinstance(value.op, ir.GlobalVar):
            self._function_call(var, value)
        elif isinstance(value, ir.Call) and isinstance(value.op, ir.Op):
            self._op_call(var, value)
        elif isinstance(value, ir.Call):
            raise self._fault(
                "DIST0506", "what it does on shards is not known", var, value,
                "Call a Relax op or a PrimFunc instead.",
            )
        elif isinstance(value, relax.TupleGetItem):
            fields = list(value.tuple_value.ty.fields)[: int(value.index)]
            first = sum(len(flat_types(f)) for f in fields)
            count = len(flat_types(var.ty))
            terms = [self._terms_of(value.tuple_value, first + i) for i in range(count)]
            zero = all(self._zero_of(value.tuple_value, first + i) for i in range(count))
            local = relax.TupleGetItem(self._local(value.tuple_value), int(value.index))
            self._bind(var, self.builder.normalize(local), terms, zero)
        else:
            leaves = list(leaves_of(value)) if is_tensors(var.ty) else []
            terms = [self._terms_of(e, n) for e, n, _ in leaves]
            local = self._local(value)
            for i, (e, n, _) in enumerate(leaves):
                if self._zero_of(e, n):
                    self.zero[(var, i)] = True
            self._bind(var, local, terms, False)

    def _transfer(self, var: Any, value: ir.Call, kind: str) -> None:
        if kind == "recv":
            names = ("device_mesh", "peer_mesh", "placement", "peer_placement", "shape", "dtype",
                     "tag")
            call = ops.recv(**{n: value.attrs[n] for n in names})
            self._bind(var, self.builder.normalize(call), [()], False)
            return
        source = value.args[0]
        if self._terms_of(source, 0):
            raise self._level("it sends an unfinished reduction", var, value)
        call = rebuild(value, value.op, [self._local(source)])
        self._bind(var, self.builder.normalize(call), [()], self._zero_of(source, 0))

    def _collective(self, var: Any, value: ir.Call, kind: str) -> None:
        if kind == "axis_index":
            raise self._level("axis_index belongs to level 5", var, value)
        self._move(var, value, kind, value.attrs)

    def _move(self, var: Any, value: ir.Call, kind: str, attrs: Any) -> None:
        source = value.args[0]
        terms = self._terms_of(source, 0)
        if kind in REDUCERS:
            axes = [int(a) for a in attrs["mesh_axes"]] if kind == "all_reduce" else [
                int(attrs["mesh_axis"])
            ]
            known = dict(terms)
            if any(known.get(a) != str(attrs["op"]) for a in axes):
                raise self._fault(
                    "DIST0503",
                    f'it reduces ({attrs["op"]}) along the mesh axes {axes}, where its operand '
                    f"is {'unfinished: ' + str(terms) if terms else 'complete'}",
                    var, value, "Reduce each unfinished axis once, with its own op.",
                )
            terms = without(terms, axes)
        elif kind == "partial":
            axes = [int(a) for a in attrs["mesh_axes"]]
            if within(terms, axes):
                raise self._level("it wraps a value that is unfinished already", var, value)
            terms = tuple(sorted((*terms, *((a, str(attrs["op"])) for a in axes))))
        want = self.shard_of(var.ty, place_of(self.name, var, value))
        local = collective(
            self.writer, kind, attrs, self._local(source), want.local, str(var.name)
        )
        local = self.builder.normalize(local)
        self._check(local.ty, [want], var, value)
        self._bind(var, local, [terms], self._zero_of(source, 0) and _sum_like(kind, attrs))

    def _function_call(self, var: Any, value: ir.Call) -> None:
        callee = self.context.mod[value.op]
        params, results = attribute_axes(callee, "params"), attribute_axes(callee, "results")
        at = 0
        for arg in value.args:
            for expr, number, _ in leaves_of(arg) if is_tensors(arg.ty) else ():
                if axes_of(self._terms_of(expr, number)) != params.get(at, ()):
                    raise self._level(
                        f"argument {at} is partial along "
                        f"{list(axes_of(self._terms_of(expr, number)))}, the callee expects "
                        f"{list(params.get(at, ()))}",
                        var, value,
                    )
                at += 1
        args = [self._local(a) for a in value.args]
        call = self.builder.normalize(rebuild(value, self.context.callees[value.op], args))
        terms = [sums(results.get(i, ())) for i in range(len(flat_types(var.ty)))]
        self._bind(var, call, terms, False)

    def _op_call(self, var: Any, value: ir.Call) -> None:
        if not is_tensors(var.ty):
            self._bind(var, substitute(value, self.env), [], False)
            return
        place = place_of(self.name, var, value)
        outs = flat_types(var.ty)
        form = call_form(value, outs, self.context.mod, self.name, var)
        operands = [leaf for arg in tensor_args(value) for leaf in leaves_of(arg)]
        handed = self._handed(var, value, form, operands)
        ins = []
        for (expr, number, ty), labels in zip(operands, form.ins):
            if isinstance(expr, ir.GenericConst):
                shape = static_shape(ty) or ()
                own = shard(shape, labels, self.sizes, str(tensor_type(ty).dtype))
                ins.append(Operand(self._constant(expr, labels), None, own, True))
                continue
            if isinstance(ty, DTensorType) and self.context.mesh_number(
                ty.device_mesh
            ) != self.number:
                raise self._fault(
                    "DIST0503", "an operand lies on another mesh than the result", var, value,
                    "Redistribute it to the mesh of the result.",
                )
            at = number if isinstance(expr.ty, relax.TupleType) else None
            own = self.shard_of(ty, place)
            ins.append(Operand(self._local(expr), at, own, self._zero_of(expr, number)))
        wanted = [self.shard_of(t, place) for t in outs]
        cx = LocalCall(
            value, form, value.args, ins, wanted, self.mesh, self.writer, self.name, var,
            self.caches,
        )
        protect(cx)
        handler = handlers().get(str(value.op.name))
        if str(value.op.name) in TIR_CALLS:
            local = call_tir(cx, self.context.mod, self.context.prim_funcs)
        else:
            local = handler(cx) if handler and form.sharded else cx.same()
        local = self._normalized(local, var, value)
        self._check(local.ty, wanted, var, value)
        zero = not any(o.padded_dims for o in wanted) or stays_zero(cx)
        terms = tuple(sorted((*form.terms, *handed)))
        self._bind(var, local, [terms] * len(outs), zero)

    def _normalized(self, local: Any, var: Any, value: Any) -> Any:
        if isinstance(local, ir.Var):
            return local
        try:
            return self.builder.normalize(local)
        except (LoweringError, PropagationError):
            raise
        except Exception as error:
            lines = [x for x in str(error).strip().splitlines() if x.strip()]
            raise self._fault(
                "DIST0505",
                f"the op refuses shards: {lines[-1].strip() if lines else type(error).__name__}",
                var, value, "Replicate its operands, or register_local a form for shards.",
            ) from error

    def _handed(self, var: Any, value: ir.Call, form: Any, operands: Sequence[Any]) -> Terms:
        """Terms that the call carries; everything unfinished must be carried."""
        have = [self._terms_of(e, n) for e, n, _ in operands]
        if not any(have):
            return ()
        rule = form.rule or rule_of(value, self.context.mod)
        constants = [i for i, (e, _, _) in enumerate(operands) if isinstance(e, ir.GenericConst)]
        handed, needed = carried(rule, have, constants, form)
        if needed or any(without(t, axes_of(handed)) for t in have):
            raise self._level("it reads an unfinished reduction", var, value)
        return handed

    def _check(self, ty: Any, wanted: Sequence[Shard], var: Any, value: Any) -> None:
        wrong = expected_mismatch(ty, wanted)
        if wrong:
            raise self._fault(
                "DIST0505", wrong, var, value,
                "Replicate its operands, or register_local a form for shards.",
            )

    # -- the function

    def _open(self, mesh: Any) -> None:
        self.mesh, self.sizes = mesh, mesh_shape(mesh)
        boundary = attribute_axes(self.fn, "params")
        at = 0
        for position, param in enumerate(self.fn.params):
            leaves = flat_types(param.ty)
            tensors = is_tensors(param.ty)
            for i in range(len(leaves) if tensors else 0):
                terms = sums(boundary.get(at, ()))
                if terms:
                    self.terms[(param, i)] = terms
                if self.entry:
                    self.zero[(param, i)] = True
                at += 1
            if not self.entry:
                self.params.append(self._declare(param))
                continue
            self._entry_param(position, param)

    def _entry_param(self, position: int, param: Any) -> None:
        """Parameters of an entry are tensors on its mesh; tuples are taken apart."""
        if not is_tensors(param.ty):
            raise LoweringError(
                "DIST0504",
                f"an input of type {param.ty}",
                place=f"{self.name}/{param.name}",
                remedy="Pass tensors only.",
            )

        def make(ty: Any, name: str) -> Any:
            if isinstance(ty, relax.TupleType):
                fields = [make(t, f"{name}_{i}") for i, t in enumerate(ty.fields)]
                if any(f is None for f in fields):
                    return None
                return typed(relax.Tuple(fields), relax.TupleType([f.ty for f in fields]))
            if not isinstance(ty, DTensorType):
                self.local_type(ty, f"{self.name}/{name}")
            if self.context.mesh_number(ty.device_mesh) != self.number:
                return None
            var = relax.Var(name, self.local_type(ty, f"{self.name}/{name}"))
            self.params.append(var)
            self.param_leaves.append((position, name, ty))
            return var

        value = make(param.ty, str(param.name))
        if value is not None:
            self.env[param] = value

    def _result(self) -> Any:
        """Result expression, after checking that it is as finished as the boundary says."""
        result = self.fn.body.body
        wanted = attribute_axes(self.fn, "results")
        leaves = list(leaves_of(result))
        for i, (expr, number, _) in enumerate(leaves):
            if axes_of(self._terms_of(expr, number)) != wanted.get(i, ()):
                raise LevelError(
                    "DIST0451",
                    f"result {i} is partial along {list(axes_of(self._terms_of(expr, number)))}, "
                    f"its callers expect {list(wanted.get(i, ()))}",
                    place=self.name,
                    remedy="Run LegalizeRedistribute first.",
                )
        if not self.entry:
            return self._local(result)
        mine = []
        for index, (expr, number, ty) in enumerate(self._open_tuples(result)):
            if not isinstance(ty, DTensorType):
                self.local_type(ty, self.name)
            if self.context.mesh_number(ty.device_mesh) != self.number:
                continue
            value = self._local(expr)
            if isinstance(expr.ty, relax.TupleType):
                value = self._item(value, number)
            mine.append(value)
            self.outputs.append(Output(index, ty))
        if len(mine) == 1:
            return mine[0]
        return typed(relax.Tuple(mine), relax.TupleType([v.ty for v in mine]))

    def _item(self, value: Any, number: int) -> Any:
        """Flattened leaf of a (nested) local tuple."""
        for i, field in enumerate(value.ty.fields):
            count = len(flat_types(field))
            if number < count:
                part = value.fields[i] if isinstance(value, relax.Tuple) else self.writer.emit(
                    relax.TupleGetItem(value, i), "result"
                )
                return self._item(part, number) if isinstance(field, relax.TupleType) else part
            number -= count
        raise LoweringError(
            "DIST0504", "a result that is no tensor", place=self.name, remedy="Return tensors."
        )

    def _open_tuples(self, expr: Any) -> list[tuple[Any, int, Any]]:
        """Leaves of a result, tuples that span meshes opened."""
        if isinstance(expr, relax.Tuple):
            return [x for f in expr.fields for x in self._open_tuples(f)]
        if isinstance(expr, ir.Var) and expr in self.tuples:
            return [x for f in self.tuples[expr] for x in self._open_tuples(f)]
        return list(leaves_of(expr))

    def run(self, mesh: Any, attrs: Any = None, impure: Mapping[Any, Any] | None = None) -> Any:
        """Return the function at level 5; :attr:`outputs` and :attr:`param_leaves` then hold
        what ``dist.io`` says.
        """
        self._open(mesh)
        for _ in bindings_of(self.fn, self.name):
            pass  # refuses what has no local form, before anything is written
        blocks = []
        for block in self.fn.body.blocks:
            self.writer = BlockWriter(self.builder, isinstance(block, relax.DataflowBlock))
            self.constants.clear()
            self.caches.clear()
            for binding in block.bindings:
                self._visit(binding.var, binding.value)
            blocks.append(self.writer.block())
        self.writer = BlockWriter(self.builder, False)
        self.constants.clear()
        result = self._result()
        blocks.append(self.writer.block())
        kept, read, pure = pruned(blocks, result)
        if self.entry:
            used = [i for i, p in enumerate(self.params) if p in read]
            self.params = [self.params[i] for i in used]
            self.param_leaves = [self.param_leaves[i] for i in used]
        return with_body(self.fn, self.params, kept, result, pure, attrs)


def _sum_like(kind: str, attrs: Any) -> bool:
    """Whether zeros in the padding stay zeros through a collective."""
    return kind not in ("all_reduce", "reduce_scatter", "partial") or str(attrs["op"]) == "sum"
