# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""One function from level 3 to level 4: redistributions and reductions become collectives.

Most bindings of a function stay as they are. Those that are alike but for the variables they
read are looked at once (:class:`Classes`), and a binding of a class that stays, which reads no
variable that has changed, is taken over without a second look.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, relax
from tvm.relax.distributed import DTensorType

from ...errors import LevelError
from ...ir import REDUCTIONS, call_axes, dist_op_name, flat_types
from ...ir.rewrite import (
    VARIABLES,
    is_redistribute,
    is_tensors,
    leaves_of,
    place_of,
    rebuild,
    substitute,
    tensor_args,
    typed,
    with_body,
)
from ...native import OP_CALL, Reading
from ...ops import (
    CallForm,
    Terms,
    attribute_axes,
    axes_of,
    call_form,
    carried,
    is_packed_call,
    learned,
    rule_of,
    sums,
    within,
    without,
)
from .moves import Moves
from .values import REDUCE, USE, WRAP, Values


class Classes:
    """What bindings that are alike have in common, in all functions of all modules.

    Parameters
    ----------
    mod : IRModule
        At level 3.
    """

    def __init__(self, mod: ir.IRModule) -> None:
        self.mod = mod
        self.forms: dict[int, CallForm] = learned("forms")
        self._dist_ops: dict[int, str | None] = learned("R.dist ops")
        self._stays: dict[int, bool] = learned("stays")

    def dist_op(self, like: int, kind: int, value: Any) -> str | None:
        """Name of the ``R.dist`` op that a binding of a class calls."""
        if kind != OP_CALL:
            return None
        if like < 0:
            return dist_op_name(value)
        if like not in self._dist_ops:
            self._dist_ops[like] = dist_op_name(value)
        return self._dist_ops[like]

    def stays(self, like: int, value: Any) -> bool:
        """Whether a binding of a class stays as it is where nothing that it reads has changed."""
        if like < 0:
            return False
        found = self._stays.get(like)
        if found is None:
            found = self._stays[like] = self._is_plain(value)
        return found

    def _is_plain(self, value: Any) -> bool:
        if type(value) is not ir.Call:
            return True
        if type(value.op) is ir.GlobalVar:
            callee = self.mod[value.op]
            return not any(attribute_axes(callee, side) for side in ("params", "results"))
        return False

    def finish(self, like: int, form: CallForm | None) -> None:
        """Keep how the calls of a class are sharded; None: they hold no DTensor."""
        if like < 0:
            return
        self._stays[like] = form is None or not form.terms
        if form is not None:
            self.forms[like] = form


class FunctionLegalizer:
    """Rewrites one function.

    Parameters
    ----------
    classes : Classes
    fn : relax.Function
    reading : Reading
        Of the function; it has no control flow.
    values : Values
    moves : Moves
        Of the same values.
    """

    def __init__(
        self, classes: Classes, fn: relax.Function, reading: Reading, values: Values, moves: Moves
    ) -> None:
        self.classes, self.mod, self.fn = classes, classes.mod, fn
        self.reading, self.values, self.moves = reading, values, moves
        self._first = reading.params

    def run(self) -> relax.Function:
        """Return the function at level 4, or itself where that is the same."""
        fn, values = self.fn, self.values
        self._note_reads()
        self._open_params()
        changed = {n for n, var in enumerate(fn.params) if values.is_changed(var)}
        blocks, end = [], 0
        for block in fn.body.blocks[:]:
            values.open_block(isinstance(block, relax.DataflowBlock) and not values.impure)
            first, end = end, end + len(block.bindings)
            for number in range(first, end):
                self._binding(number, changed)
            blocks.append(values.writer.block())
        values.open_block(False)
        wanted = attribute_axes(fn, "results")
        old = fn.body.body
        result = substitute(old, values.env)
        count = len(list(leaves_of(result)))
        if count:
            result = values.demand(result, [wanted.get(i, ()) for i in range(count)])
        if not values.written and result is old and not values.writer.bindings:
            return fn
        blocks.append(values.writer.block())
        return with_body(fn, fn.params, blocks, result, bool(fn.is_pure) and not values.impure)

    def _note_reads(self) -> None:
        """Note how variables are read that somebody asks about: of wraps and reductions."""
        reading, classes = self.reading, self.classes
        found = [0] * len(reading.variables)
        for number, (like, kind) in enumerate(zip(reading.like, reading.kinds)):
            name = classes.dist_op(like, kind, reading.values[number])
            how = USE
            if name is not None:
                how = WRAP if name == "partial" else REDUCE if name in REDUCTIONS else USE
            for used in reading.used(number):
                if used >= 0:
                    found[used] |= how
        for used in reading.result:
            if used >= 0:
                found[used] |= USE
        self.values.reads = dict(zip(reading.variables, found))

    def _open_params(self) -> None:
        at, boundary = 0, attribute_axes(self.fn, "params")
        if not boundary:
            return
        for param in self.fn.params:
            for i in range(len(flat_types(param.ty)) if is_tensors(param.ty) else 0):
                self.values.terms[(param, i)] = sums(boundary.get(at, ()))
                at += 1

    def _binding(self, number: int, changed: set[int]) -> None:
        """Take a binding over, or write what becomes of it; ``changed`` are variables so far."""
        reading, values = self.reading, self.values
        like, value = reading.like[number], reading.values[number]
        written = values.writer.bindings
        place = self._first + number
        var = reading.variables[place]
        if not values.impure and self.classes.stays(like, value):
            read = changed.intersection(reading.used(number)) if changed else changed
            if not read:
                written.append(reading.bindings[number])
                return
            if not any(values.has_terms(reading.variables[n]) for n in read):
                values.writer.bind(var, substitute(value, values.env))
                values.written = True
                return
        before = len(written)
        self._visit(var, value, like)
        if values.is_changed(var):
            changed.add(place)
        if len(written) == before + 1 and written[-1].value.same_as(value):
            if written[-1].var.same_as(var):
                written[-1] = reading.bindings[number]
                return
        values.written = True

    def _visit(self, var: Any, value: Any, like: int) -> None:
        kind, values = dist_op_name(value), self.values
        if is_redistribute(value):
            self.moves.redistribute(var, value)
        elif kind == "partial":
            self.moves.wrap(var, value)
        elif kind is not None:
            self._collective(var, value, kind)
        elif type(value) is ir.Call and type(value.op) is ir.GlobalVar:
            self._function_call(var, value)
        elif is_packed_call(value):
            self._packed_call(var, value)
        elif type(value) is ir.Call and tensor_args(value):
            self._op_call(var, value, like)
        elif type(value) is ir.Call:
            self._creation(var, value, like)
        elif type(value) is relax.TupleGetItem:
            new = substitute(value, values.env)
            first = self._first_leaf(new)
            count = len(flat_types(var.ty))
            values.bind(
                var, new, [values.terms_of(new.tuple_value, first + i) for i in range(count)]
            )
        elif type(value) in VARIABLES:
            # A plain alias stays, under its own name.
            new = substitute(value, values.env)
            values.bind(var, new, [values.terms_of(new, i) for i in range(len(flat_types(var.ty)))])
        else:
            new = substitute(value, values.env)
            values.bind(var, new, [values.terms_of(e, n) for e, n, _ in leaves_of(new)])

    @staticmethod
    def _first_leaf(item: Any) -> int:
        fields = item.tuple_value.ty.fields[: int(item.index)]
        return sum(len(flat_types(f)) for f in fields)

    def _creation(self, var: Any, value: ir.Call, like: int) -> None:
        self.classes.finish(like, None)
        self.values.bind(var, substitute(value, self.values.env))

    def _collective(self, var: Any, value: ir.Call, kind: str) -> None:
        """Take an explicit collective of level 4 as it is."""
        values = self.values
        if not value.args:
            values.bind(var, value)
            return
        source = value.args[0]
        raw = values.env.get(source, source)
        if kind in REDUCTIONS and source in values.raw:
            raw = values.raw[source][0]
        axes: list[int] = []
        if kind in REDUCTIONS:
            axes = list(call_axes(value))
        terms = values.terms_of(raw, 0)
        if not set(axes) <= set(axes_of(terms)):
            raise LevelError(
                "DIST0451",
                f"its operand is complete along the mesh axes {axes}: "
                "the module is legalized already, or it counts twice",
                place=place_of(values.name, var, value),
                remedy="Give LegalizeRedistribute a module at level 3.",
            )
        values.bind(var, rebuild(value, value.op, [raw], value.ty), [without(terms, axes)])

    def _function_call(self, var: Any, value: ir.Call) -> None:
        values, callee = self.values, self.mod[value.op]
        params, results = attribute_axes(callee, "params"), attribute_axes(callee, "results")
        args: list[Any] = []
        at = 0
        for arg in value.args[:]:
            arg = substitute(arg, values.env)
            if not is_tensors(arg.ty):
                args.append(arg)
                continue
            count = len(list(leaves_of(arg)))
            mesh = self._mesh_of(flat_types(callee.params[len(args)].ty))
            wanted = [params.get(at + i, ()) for i in range(count)]
            args.append(values.demand(arg, wanted, mesh))
            at += count
        new = rebuild(value, values.env.get(value.op, value.op), args, value.ty)
        values.bind(var, new, [sums(results.get(i, ())) for i in range(len(flat_types(var.ty)))])

    @staticmethod
    def _mesh_of(leaves: Sequence[Any]) -> Any:
        return next((t.device_mesh for t in leaves if isinstance(t, DTensorType)), None)

    def _packed_call(self, var: Any, value: ir.Call) -> None:
        """A packed function takes tensors that are complete."""
        args = [self._finished(substitute(arg, self.values.env)) for arg in value.args]
        self.values.bind(var, rebuild(value, value.op, args, value.ty))

    def _finished(self, arg: Any) -> Any:
        """An argument whose tensors are complete; shapes and objects stay."""
        if is_tensors(arg.ty):
            return self.values.demand(arg, [()] * len(list(leaves_of(arg))))
        if isinstance(arg, relax.Tuple):
            fields = [self._finished(field) for field in arg.fields]
            return typed(relax.Tuple(fields), relax.TupleType([f.ty for f in fields]))
        return arg

    def _form(self, var: Any, value: ir.Call, outs: Sequence[Any], like: int) -> CallForm:
        """How a call is sharded, as the first of its class."""
        form = self.classes.forms.get(like)
        if form is None:
            form = call_form(value, outs, self.mod, self.values.name, var)
            self.classes.finish(like, form)
        return form

    def _op_call(self, var: Any, value: ir.Call, like: int) -> None:
        values, outs = self.values, flat_types(var.ty)
        if not any(isinstance(t, DTensorType) for t in outs):
            self._creation(var, value, like)
            return
        form = self._form(var, value, outs, like)
        old = value.args[:]
        skip = 1 if type(old[0]) is ir.GlobalVar else 0
        args = [substitute(a, values.env) for a in old]
        tensors = [i for i in range(skip, len(args)) if is_tensors(args[i].ty)]
        operands = [x for i in tensors for x in leaves_of(args[i])]
        have = [values.terms_of(e, n) for e, n, _ in operands]
        handed: Terms = ()
        if any(have):
            rule = form.rule or rule_of(value, self.mod)
            constants = [i for i, (e, _, _) in enumerate(operands) if type(e) is ir.GenericConst]
            handed, needed = carried(rule, have, constants, form)
            mesh = outs[0].device_mesh
            at = 0
            for i in tensors:
                count = len(list(leaves_of(args[i])))
                wanted = []
                for j in range(at, at + count):
                    kept = axes_of(within(have[j], axes_of(handed)))
                    wanted.append(tuple(sorted((*kept, *needed.get(j, ())))))
                args[i] = values.demand(args[i], wanted, mesh)
                at += count
        op = values.env.get(value.op, value.op)
        changed = any(not a.same_as(b) for a, b in zip(args, old))
        new = rebuild(value, op, args, value.ty) if changed else value
        if not form.terms:
            values.bind(var, new, [handed] * len(outs))
            return
        self._reducing(var, new, form.terms, handed, outs)

    def _reducing(
        self, var: Any, call: ir.Call, made: Terms, handed: Terms, outs: Sequence[Any]
    ) -> None:
        """Bind a reducing call and complete it for all but its wraps."""
        values = self.values
        reads = values.reads.get(var, 0)
        terms = tuple(sorted((*made, *handed)))
        if reads and not reads & USE:
            values.raw[var] = (values.bind(var, call, [terms]), axes_of(made))
            return
        local = type(var) is relax.DataflowVar and values.writer.dataflow
        raw = (relax.DataflowVar if local else relax.Var)(f"{var.name}_terms", var.ty)
        values.writer.bind(raw, call)
        for i in range(len(outs)):
            values.terms[(raw, i)] = terms
        if len(outs) == 1 and not isinstance(var.ty, relax.TupleType):
            values.raw[var] = (raw, axes_of(made))
            mesh, value = outs[0].device_mesh, raw
            groups = [(op, [a for a, o in made if o == op]) for op in sorted({o for _, o in made})]
            for op, axes in groups[:-1]:
                reduced = self.moves.calls.all_reduce(value, mesh, axes, op)
                value = values.writer.add(reduced, f"{var.name}_terms")
            op, axes = groups[-1]
            last = self.moves.calls.all_reduce(value, mesh, axes, op)
            values.bind(var, last, [handed])
            return
        leaves = [values.complete(raw, i, axes_of(handed), var.name) for i in range(len(outs))]
        values.bind(var, typed(relax.Tuple(leaves), var.ty), [handed] * len(outs))
