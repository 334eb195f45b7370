# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""One function from level 3 to level 4: redistributions and reductions become collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import ir, relax
from tvm.relax.distributed import DTensorType

from ...errors import LevelError, LoweringError
from ...ir import (
    Labels,
    P,
    R,
    flat_types,
    labels_of,
    mesh_key,
    ops,
    placement_text,
    static_shape,
)
from ...ir.ops import call_axes, dist_op_name
from ...rules import is_packed_call, rule_of
from .emit import (
    BlockWriter,
    is_tensors,
    leaves_of,
    op_name,
    place_of,
    rebuild,
    substitute,
    tensor_args,
    typed,
    with_body,
)
from .planner import Planner
from .steps import Step
from .terms import Terms, attribute_axes, axes_of, call_form, carried, sums, within, without
from .values import REDUCERS, Counter, Values


def is_redistribute(value: Any) -> bool:
    """Whether a value is ``R.dist.redistribute(...)``."""
    return isinstance(value, ir.Call) and op_name(value) == "dist.redistribute"


def step_call(
    x: Any, mesh: Any, step: Step, before: Labels, shape: Sequence[int], op: str = "sum"
) -> ir.Call:
    """Write a step of a plan as a call.

    Parameters
    ----------
    x : expression
        The operand.
    mesh : DeviceMesh
    step : Step
    before : Labels
        How the operand lies.
    shape : sequence of int
        Whole shape of the tensor.
    op : str
        Reduction of its partial axes.
    """
    axes = step.axes
    if step.kind == "all_reduce":
        return ops.all_reduce(x, mesh, axes, op)
    if step.kind == "partial":
        return ops.partial(x, mesh, axes, op)
    if step.kind == "reduce_scatter":
        return ops.reduce_scatter(x, mesh, axes, step.split_dim, op)
    if step.kind == "all_gather":
        return ops.all_gather(x, mesh, axes, step.gather_dim)
    if step.kind == "all_to_all":
        return ops.all_to_all(x, mesh, axes, step.gather_dim, step.split_dim)
    if step.kind == "exchange":
        # Along axes that take no part, what is partial is typed R.
        ends = [placement_text([R if y == P else y for y in x]) for x in (before, step.after)]
        return ops.exchange(x, mesh, axes, *ends, shape)
    return ops.local_slice(x, mesh, axes, step.split_dim)


class FunctionLegalizer(Values):
    """Rewrites one function.

    Parameters
    ----------
    mod : IRModule
        The module at level 3.
    name : str
        Name of the function.
    fn : relax.Function
    callees : mapping of GlobalVar to GlobalVar
        Functions whose type changes.
    impure : bool
        Whether the function transfers between meshes, itself or in a callee.
    tags : Counter
        Numbers for transfers.
    planner : Planner
        Finds the steps of redistributions.
    """

    def __init__(
        self,
        mod: ir.IRModule,
        name: str,
        fn: relax.Function,
        callees: Mapping[Any, Any],
        impure: bool,
        tags: Counter,
        planner: Planner,
    ) -> None:
        super().__init__(mod, name, fn, callees, impure, tags)
        self.planner = planner

    def _visit(self, var: Any, value: Any) -> None:
        kind = dist_op_name(value)
        if is_redistribute(value):
            self._redistribute(var, value)
        elif kind == "partial":
            self._wrap(var, value)
        elif kind is not None:
            self._collective(var, value, kind)
        elif isinstance(value, ir.Call) and isinstance(value.op, ir.GlobalVar):
            self._function_call(var, value)
        elif is_packed_call(value):
            self._packed_call(var, value)
        elif isinstance(value, ir.Call) and tensor_args(value):
            self._op_call(var, value)
        elif isinstance(value, ir.Call):
            self._creation(var, value)
        elif isinstance(value, relax.TupleGetItem):
            new = substitute(value, self.env)
            terms = [
                self._terms(new.tuple_value, self._first_leaf(new) + i)
                for i in range(len(flat_types(var.ty)))
            ]
            self._bind(var, new, terms)
        elif isinstance(value, ir.Var):
            # A plain alias stays, under its own name.
            new = substitute(value, self.env)
            known = [self._terms(new, i) for i in range(len(flat_types(var.ty)))]
            self._bind(var, new, known)
        else:
            new = substitute(value, self.env)
            terms = [self._terms(e, n) for e, n, _ in leaves_of(new)]
            self._bind(var, new, terms)

    @staticmethod
    def _first_leaf(item: Any) -> int:
        fields = list(item.tuple_value.ty.fields)[: int(item.index)]
        return sum(len(flat_types(f)) for f in fields)

    def _creation(self, var: Any, value: ir.Call) -> None:
        self._bind(var, substitute(value, self.env))

    def _collective(self, var: Any, value: ir.Call, kind: str) -> None:
        """Take an explicit collective of level 4 as it is."""
        if not value.args:
            self._bind(var, value)
            return
        source = value.args[0]
        raw = self.env.get(source, source)
        if kind in REDUCERS and source in self.raw:
            raw = self.raw[source][0]
        axes: list[int] = []
        if kind in REDUCERS:
            axes = list(call_axes(value))
        terms = self._terms(raw, 0)
        if not set(axes) <= set(axes_of(terms)):
            raise LevelError(
                "DIST0451",
                f"its operand is complete along the mesh axes {axes}: "
                "the module is legalized already, or it counts twice",
                place=place_of(self.name, var, value),
                remedy="Give LegalizeRedistribute a module at level 3.",
            )
        self._bind(var, rebuild(value, value.op, [raw], value.ty), [without(terms, axes)])

    def _function_call(self, var: Any, value: ir.Call) -> None:
        callee = self.mod[value.op]
        params, results = attribute_axes(callee, "params"), attribute_axes(callee, "results")
        args, at = [], 0
        for arg in value.args:
            arg = substitute(arg, self.env)
            if not is_tensors(arg.ty):
                args.append(arg)
                continue
            count = len(list(leaves_of(arg)))
            mesh = self._mesh_of(flat_types(callee.params[len(args)].ty))
            wanted = [params.get(at + i, ()) for i in range(count)]
            args.append(self._demand(arg, wanted, mesh))
            at += count
        new = rebuild(value, self.env.get(value.op, value.op), args, value.ty)
        self._bind(var, new, [sums(results.get(i, ())) for i in range(len(flat_types(var.ty)))])

    @staticmethod
    def _mesh_of(leaves: Sequence[Any]) -> Any:
        return next((t.device_mesh for t in leaves if isinstance(t, DTensorType)), None)

    def _packed_call(self, var: Any, value: ir.Call) -> None:
        """A packed function takes tensors that are complete."""
        args = [self._finished(substitute(arg, self.env)) for arg in value.args]
        self._bind(var, rebuild(value, value.op, args, value.ty))

    def _finished(self, arg: Any) -> Any:
        """An argument whose tensors are complete; shapes and objects stay."""
        if is_tensors(arg.ty):
            return self._demand(arg, [()] * len(list(leaves_of(arg))))
        if isinstance(arg, relax.Tuple):
            fields = [self._finished(field) for field in arg.fields]
            return typed(relax.Tuple(fields), relax.TupleType([f.ty for f in fields]))
        return arg

    def _op_call(self, var: Any, value: ir.Call) -> None:
        outs = flat_types(var.ty)
        if not any(isinstance(t, DTensorType) for t in outs):
            self._creation(var, value)
            return
        form = call_form(value, outs, self.mod, self.name, var)
        skip = 1 if isinstance(value.args[0], ir.GlobalVar) else 0
        args = [substitute(a, self.env) for a in value.args]
        operands = [x for a in args[skip:] if is_tensors(a.ty) for x in leaves_of(a)]
        have = [self._terms(e, n) for e, n, _ in operands]
        handed: Terms = ()
        if any(have):
            rule = form.rule or rule_of(value, self.mod)
            constants = [
                i for i, (e, _, _) in enumerate(operands) if isinstance(e, ir.GenericConst)
            ]
            handed, needed = carried(rule, have, constants, form)
            mesh = outs[0].device_mesh
            at = 0
            for i, arg in enumerate(args):
                if i < skip or not is_tensors(arg.ty):
                    continue
                count = len(list(leaves_of(arg)))
                wanted = []
                for j in range(at, at + count):
                    kept = axes_of(within(have[j], axes_of(handed)))
                    wanted.append(tuple(sorted((*kept, *needed.get(j, ())))))
                args[i] = self._demand(arg, wanted, mesh)
                at += count
        op = self.env.get(value.op, value.op)
        changed = any(not a.same_as(b) for a, b in zip(args, value.args))
        new = rebuild(value, op, args, value.ty) if changed else value
        if not form.terms:
            self._bind(var, new, [handed] * len(outs))
            return
        self._reducing(var, new, form.terms, handed, outs)

    def _reducing(
        self, var: Any, call: ir.Call, made: Terms, handed: Terms, outs: Sequence[Any]
    ) -> None:
        """Bind a reducing call and complete it for all but its wraps."""
        readers = self.readers.get(var, [])
        terms = tuple(sorted((*made, *handed)))
        plain = any(how == "use" for how, _ in readers) or not readers
        if not plain:
            self.raw[var] = (self._bind(var, call, [terms]), axes_of(made))
            return
        local = isinstance(var, relax.DataflowVar) and self.writer.dataflow
        raw = (relax.DataflowVar if local else relax.Var)(f"{var.name}_terms", var.ty)
        self.writer.bind(raw, call)
        for i in range(len(outs)):
            self.terms[(raw, i)] = terms
        if len(outs) == 1 and not isinstance(var.ty, relax.TupleType):
            self.raw[var] = (raw, axes_of(made))
            mesh, value = outs[0].device_mesh, raw
            groups = [(op, [a for a, o in made if o == op]) for op in sorted({o for _, o in made})]
            for op, axes in groups[:-1]:
                value = self.writer.emit(ops.all_reduce(value, mesh, axes, op), f"{var.name}_terms")
            op, axes = groups[-1]
            last = self.builder.normalize(ops.all_reduce(value, mesh, axes, op))
            self._bind(var, last, [handed])
            return
        leaves = [self._complete(raw, i, axes_of(handed), var.name) for i in range(len(outs))]
        self._bind(var, typed(relax.Tuple(leaves), var.ty), [handed] * len(outs))

    def _wrap(self, var: Any, value: ir.Call) -> None:
        """``R.dist.partial``: keep what is unfinished, make partial what is complete."""
        axes = tuple(sorted(int(a) for a in value.attrs["mesh_axes"]))
        op = str(value.attrs["op"])
        source = value.args[0]
        if source in self.sources:
            if op != "sum":
                raise self._fault(
                    "DIST0504",
                    f'a redistribute cannot end in terms of "{op}"',
                    var,
                    value,
                    "Use op sum.",
                )
            self._move(var, self.sources[source], axes)
            return
        if isinstance(source, ir.GenericConst):
            self._bind(var, value, [tuple((a, op) for a in axes)])
            return
        if source in self.raw:
            raw, made = self.raw[source]
            # Of the call's own reductions those that are not named are completed here.
            kept = [a for a in axes_of(self._terms(raw, 0)) if a in axes or a not in made]
            leaf = self._complete(raw, 0, kept, var.name)
        else:
            leaf = self.env.get(source, source)
        have = dict(self._terms(leaf, 0))
        if any(have[a] != op for a in axes if a in have):
            # Terms of another op are no terms of this one: the value is completed, then wrapped.
            leaf = self._complete(leaf, 0, [a for a in have if a not in axes], var.name)
            have = dict(self._terms(leaf, 0))
        missing = [a for a in axes if a not in have]
        if not missing:
            self._alias(var, leaf)
            return
        call = self.builder.normalize(ops.partial(leaf, leaf.ty.device_mesh, missing, op))
        terms = tuple(sorted((*have.items(), *((a, op) for a in missing))))
        self._bind(var, call, [terms])

    def _redistribute(self, var: Any, value: ir.Call) -> None:
        readers = self.readers.get(var, [])
        if self.writer.dataflow and not isinstance(var, relax.DataflowVar):
            # Read outside its block too, where its operand may be out of sight.
            self._move(var, value, ())
            return
        self.sources[var] = value
        if not readers or any(how != "wrap" for how, _ in readers):
            self._move(var, value, ())

    def _move(self, var: Any, value: ir.Call, keep: Sequence[int]) -> None:
        """Bind ``var`` to the operand of a redistribute, moved; partial along ``keep``."""
        source = substitute(value.args[0], self.env)
        name, mesh = var.name, value.attrs.device_mesh
        target = labels_of(value.attrs.placement)
        if not isinstance(source.ty, DTensorType):
            raise self._fault(
                "DIST0504", f"a redistribute of {source.ty}", var, value, "Give it one DTensor."
            )
        if mesh_key(source.ty.device_mesh) != mesh_key(mesh):
            self._transfer(var, source, mesh, target, keep)
            return
        terms = self._terms(source, 0)
        if keep or len({op for _, op in terms}) > 1:
            # Only a sum can stay unfinished; of several reductions all but the sums end first.
            source = self._complete(source, 0, [a for a, op in terms if op == "sum"], name)
            terms = self._terms(source, 0)
        before = self._with_partial(labels_of(source.ty.placement), axes_of(terms))
        after = self._with_partial(target, keep)
        if before == after:
            self._alias(var, source)
            return
        shape = self._static(source, var, value)
        at, op = before, terms[0][1] if terms else "sum"
        *steps, final = self._plan(source, shape, before, after, mesh, var, value)
        for step in steps:
            source = self.writer.emit(step_call(source, mesh, step, at, shape, op), name)
            at = step.after
        last = self.builder.normalize(step_call(source, mesh, final, at, shape, op))
        self._bind(var, last, [sums(keep)])

    def _plan(
        self,
        source: Any,
        shape: tuple[int, ...],
        before: Labels,
        after: Labels,
        mesh: Any,
        var: Any,
        value: Any,
    ) -> tuple[Step, ...]:
        sizes, devices = mesh_key(mesh)
        dtype = str(source.ty.tensor_ty.dtype)
        try:
            return self.planner.plan(shape, before, after, sizes, dtype, devices).steps
        except LoweringError as error:
            raise self._fault(error.code, error.what, var, value, error.remedy) from error

    def _static(self, source: Any, var: Any, value: Any) -> tuple[int, ...]:
        shape = static_shape(source.ty)
        if shape is None or not all(isinstance(n, int) for n in shape):
            raise self._fault(
                "DIST0502", f"the shape {shape} is not constant", var, value, "Bind its sizes."
            )
        return shape

    @staticmethod
    def _with_partial(labels: Labels, axes: Sequence[int]) -> Labels:
        return tuple(P if a in axes else x for a, x in enumerate(labels))

    def _transfer(
        self, var: Any, source: Any, mesh: Any, target: Labels, keep: Sequence[int]
    ) -> None:
        """Send from one mesh, receive on the other; partial sums are completed first."""
        name = var.name
        source = self._complete(source, 0, (), name)
        ty = source.ty
        shape = self._static(source, var, ir.Call(ir.Op.get("relax.dist.redistribute"), [source]))
        placement, peer = placement_text(labels_of(ty.placement)), placement_text(target)
        tag = self.tags.take()
        sent = self.writer.emit(
            ops.send(source, ty.device_mesh, mesh, placement, peer, shape, tag), f"{name}_sent"
        )
        arrival = self.builder.normalize(
            ops.recv(
                sent,
                device_mesh=mesh,
                peer_mesh=ty.device_mesh,
                placement=peer,
                peer_placement=placement,
                shape=shape,
                dtype=ty.tensor_ty.dtype,
                tag=tag,
            )
        )
        if not keep:
            self._bind(var, arrival)
            return
        got = self.writer.emit(arrival, name)
        call = self.builder.normalize(ops.partial(got, mesh, sorted(keep), "sum"))
        self._bind(var, call, [sums(keep)])

    def run(self) -> relax.Function:
        """Return the function at level 4."""
        fn = self.fn
        self._collect()
        at = 0
        boundary = attribute_axes(fn, "params")
        for param in fn.params:
            for i in range(len(flat_types(param.ty)) if is_tensors(param.ty) else 0):
                self.terms[(param, i)] = sums(boundary.get(at, ()))
                at += 1
        blocks = []
        for block in fn.body.blocks:
            dataflow = isinstance(block, relax.DataflowBlock) and not self.impure
            self.writer = BlockWriter(self.builder, dataflow)
            self.finished.clear()
            for binding in block.bindings:
                self._visit(binding.var, binding.value)
            blocks.append(self.writer.block())
        self.writer = BlockWriter(self.builder, False)
        self.finished.clear()
        wanted = attribute_axes(fn, "results")
        result = substitute(fn.body.body, self.env)
        count = len(list(leaves_of(result)))
        if count:
            result = self._demand(result, [wanted.get(i, ()) for i in range(count)])
        blocks.append(self.writer.block())
        return with_body(fn, fn.params, blocks, result, bool(fn.is_pure) and not self.impure)
