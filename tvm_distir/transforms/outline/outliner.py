# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define OutlineRepeatedLayers, which moves repeated layers into private functions.

Before::

    def main(x, h_0_w, h_1_w, h_2_w):
        lv = R.matmul(x, h_0_w)
        lv1 = R.nn.relu(lv)
        lv2 = R.matmul(lv1, h_1_w)
        lv3 = R.nn.relu(lv2)
        lv4 = R.matmul(lv3, h_2_w)
        gv = R.nn.relu(lv4)

After, with ``min_bindings=2``::

    def layer(x, w):            # private
        lv = R.matmul(x, w)
        lv1 = R.nn.relu(lv)
        return lv1
    def main(x, h_0_w, h_1_w, h_2_w):
        lv1 = cls.layer(x, h_0_w)
        lv3 = cls.layer(lv1, h_1_w)
        gv = cls.layer(lv3, h_2_w)

Valid at the levels 1, 2 and 5; DTensors are refused, as a function's boundary means more between.
:func:`.InlinePrivateFunctions` takes it back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, relax
from tvm.relax import Binding, Var

from tvm_distir.core.analysis import refuse_dtensors
from tvm_distir.core.ir import is_private, relax_functions
from tvm_distir.core.ir.attributes import OPEN_AXES_ATTR, STATIONARY_ATTR, param_names
from tvm_distir.core.passes import Rewrite, module_pass
from tvm_distir.core.rewriting import all_bindings, make_var, typed, with_functions
from tvm_distir.support import PlanError, UsageError, nearest

from .build import Outlined, build
from .choose import Repeat, choose_repeats, saved
from .name_allocator import NameAllocator
from .sequence import Sequence as Bindings
from .sequence import sequence_of
from .shared import shared_in_front


@module_pass(("global", "annotated", "local"))
def OutlineRepeatedLayers(
    min_repeats: int = 2, min_bindings: int = 4, functions: Sequence[str] | None = None
) -> Rewrite:
    """Find the repeated layers of flat functions and move each into a function.

    Bindings that stand side by side and repeat with the same ops, attributes, types and wiring
    become calls of one private function; what differs from layer to layer becomes its
    parameters: weights, other values, constants that are not equal. Layers of several kinds
    (of a forward and a backward graph, of stages) become several functions. Greedy: what
    saves most bindings first, until nothing saves any.

    Variables that are still bound in the function outlined from keep their names, as do all
    attributes. Notes on annotated variables (``dist.stationary``, ``dist.open_axes``) go where
    the annotations go. The order of effects stays. Functions are called ``layer``, or as the
    model's parameter names call the layers; parameters by their names within a layer.

    Left as they are: layers between which anything is out of order, MatchCasts, branches,
    and bodies with a symbolic size that the types of their operands do not define.

    Parameters
    ----------
    min_repeats : int
        Minimum number of repetitions of a layer, at least 2.
    min_bindings : int
        Minimum number of bindings of a layer.
    functions : sequence of str, optional
        Functions to search. None: all public functions.

    Returns
    -------
    Pass
        A module pass. It raises PlanError DIST0225 when ``functions`` names none of the
        module, LevelError DIST0451 when one holds DTensors.

    Raises
    ------
    UsageError
        DIST0152: an option out of range.
    """
    for option, value, least in (
        ("min_repeats", min_repeats, 2),
        ("min_bindings", min_bindings, 1),
    ):
        if value < least:
            problem = f"{option} is {value}"
            remedy = f"Give {least} or more."
            raise UsageError("DIST0152", problem, location="OutlineRepeatedLayers", remedy=remedy)

    return lambda mod: outline_module(mod, min_repeats, min_bindings, functions)


def outline_module(
    mod: ir.IRModule,
    min_repeats: int = 2,
    min_bindings: int = 4,
    functions: Sequence[str] | None = None,
) -> ir.IRModule:
    """Apply the pass to a copy of the module."""
    chosen = _choose(mod, functions)
    names = NameAllocator(str(gv.name_hint) for gv in mod.functions)
    outlined: dict[ir.GlobalVar, ir.BaseFunc] = {}
    private: dict[ir.GlobalVar, relax.Function] = {}
    for gv, fn in mod.functions.items():
        outlined[gv] = fn
        if str(gv.name_hint) in chosen:
            outlined[gv], new = _outline(fn, min_repeats, min_bindings, names)
            private.update(new)
    return with_functions(mod, {**outlined, **private})


def _choose(mod: ir.IRModule, names: Sequence[str] | None) -> set[str]:
    """Return the names of the functions to search."""
    functions = {str(gv.name_hint): fn for gv, fn in relax_functions(mod)}
    for name in names or ():
        if name not in functions:
            problem = f'the function "{name}" to outline from does not exist'
            remedy = nearest(name, functions)
            raise PlanError("DIST0225", problem, location="module", remedy=remedy)
    if names is None:
        names = [name for name, fn in functions.items() if not is_private(fn)]
    for name in names:
        problem = "the function contains DTensors, whose placements a boundary would fix"
        remedy = "Outline before propagation, or after lowering."
        refuse_dtensors(name, functions[name], problem, remedy)
    return set(names)


def _outline(
    fn: relax.Function, min_repeats: int, min_bindings: int, allocator: NameAllocator
) -> tuple[relax.Function, dict[ir.GlobalVar, relax.Function]]:
    """Return a function with its repeats outlined, and the private functions by GlobalVar."""
    if not isinstance(fn.body, relax.SeqExpr):
        return fn, {}
    fn, sequence, repeats = _repeats(fn, min_repeats, min_bindings)
    names = dict(zip(fn.params, param_names(fn), strict=True))
    notes = dict(fn.attrs or {})
    starts: dict[int, tuple[Outlined, ir.GlobalVar, int]] = {}
    private: dict[ir.GlobalVar, relax.Function] = {}
    for repeat in repeats:
        outlined = build(sequence, repeat, names, notes, allocator)
        if outlined is None:
            continue
        gv = typed(ir.GlobalVar(outlined.name), outlined.function.ty)
        private[gv] = outlined.function
        for number, start in enumerate(repeat.starts):
            starts[start] = (outlined, gv, number)
    if not private:
        return fn, {}
    return _Caller(fn, starts).run(), private


def _repeats(
    fn: relax.Function, min_repeats: int, min_bindings: int
) -> tuple[relax.Function, Bindings, list[Repeat]]:
    """Return a function and its repeats, with shared values hoisted if that saves more."""
    sequence = sequence_of(fn)
    repeats = choose_repeats(sequence, min_repeats, min_bindings)
    ordered = shared_in_front(fn, sequence, repeats)
    if ordered is not None:
        other = sequence_of(ordered)
        more = choose_repeats(other, min_repeats, min_bindings)
        if saved(more) > saved(repeats):
            return ordered, other, more
    return fn, sequence, repeats


class _Caller:
    """Rewriter that replaces outlined occurrences by calls."""

    def __init__(self, fn: relax.Function, starts: dict[int, tuple[Outlined, Any, int]]) -> None:
        self.fn, self.starts = fn, starts
        bound = [str(binding.var.name) for binding in all_bindings(fn.body)]
        self.names = NameAllocator([*bound, *(str(param.name) for param in fn.params)])
        self.moved: set[str] = set()

    def run(self) -> relax.Function:
        """Return the function with the calls."""
        blocks = []
        at = 0
        for block in self.fn.body.blocks:
            dataflow = isinstance(block, relax.DataflowBlock)
            bindings = self._bindings(list(block.bindings), at, dataflow)
            at += len(block.bindings) + 1
            blocks.append(type(block)(bindings))
        body = typed(relax.SeqExpr(blocks, self.fn.body.body), self.fn.body.ty)
        attrs = self._attrs(dict(self.fn.attrs or {}))
        attributes = ir.make_node("ir.DictAttrs", **attrs) if attrs else None
        return relax.Function(self.fn.params, body, self.fn.ret_ty, self.fn.is_pure, attributes)

    def _bindings(self, old: list[Binding], first: int, dataflow: bool) -> list[Binding]:
        bindings: list[Binding] = []
        i = 0
        while i < len(old):
            entry = self.starts.get(first + i)
            if entry is None:
                bindings.append(old[i])
                i += 1
                continue
            outlined, gv, number = entry
            stretch = [binding.var for binding in old[i : i + outlined.repeat.length]]
            self.moved |= {str(var.name) for var in stretch}
            bindings += self._call(outlined, gv, number, stretch, dataflow)
            i += outlined.repeat.length
        return bindings

    def _call(
        self, outlined: Outlined, gv: ir.GlobalVar, number: int, stretch: list[Var], dataflow: bool
    ) -> list[Binding]:
        """Return the bindings of a call and, if it returns several, of its results."""
        call = ir.Call(gv, outlined.arguments[number])
        outputs = [stretch[offset] for offset in outlined.repeat.outputs]
        if len(outputs) == 1:
            return [relax.VarBinding(outputs[0], typed(call, outputs[0].ty))]
        ty = relax.TupleType([var.ty for var in outputs])
        results = make_var(self.names.fresh(f"{outlined.name}_results"), ty, dataflow)
        fields = [
            relax.VarBinding(v, relax.TupleGetItem(results, i)) for i, v in enumerate(outputs)
        ]
        return [relax.VarBinding(results, typed(call, ty)), *fields]

    def _attrs(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Remove the annotations of variables that were outlined."""
        if STATIONARY_ATTR in attrs:
            names = [str(n) for n in attrs.pop(STATIONARY_ATTR) if str(n) not in self.moved]
            if names:
                attrs[STATIONARY_ATTR] = names
        if OPEN_AXES_ATTR in attrs:
            axes = attrs.pop(OPEN_AXES_ATTR).items()
            open_axes = {str(n): list(a) for n, a in axes if str(n) not in self.moved}
            if open_axes:
                attrs[OPEN_AXES_ATTR] = open_axes
        return attrs
