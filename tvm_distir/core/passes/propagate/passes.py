# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define ``PropagateSharding``, which takes a module from level 2 to level 3."""

from __future__ import annotations

import json

import tvm
from tvm import ir, relax

from tvm_distir.core.analysis.well_formed import well_formed_first
from tvm_distir.core.ir.attributes.keys import (
    LABELS_ATTR,
    OPEN_AXES_ATTR,
    PARTIAL_ATTR,
    STATIONARY_ATTR,
)
from tvm_distir.core.ir.branches import lift_branches
from tvm_distir.core.ir.operators.names import first_or_new_name
from tvm_distir.core.ir.types import relax_functions
from tvm_distir.core.passes.branches.sink import sink_conversions
from tvm_distir.core.passes.cost_model import CostModel
from tvm_distir.core.passes.declaration import Rewrite, module_pass
from tvm_distir.core.propagation.decide import propagate
from tvm_distir.core.propagation.decision import Decision, Instance
from tvm_distir.core.propagation.serialization import decision_of_labels
from tvm_distir.core.propagation.solve.cost import Costs
from tvm_distir.core.rewriting.calls import typed
from tvm_distir.core.rewriting.canonical import canonical
from tvm_distir.core.rewriting.collector import gc_paused
from tvm_distir.support import InfeasibleError, Steps, memoized_steps, unrolled

from .rewriter import FunctionRewriter

COMPLETED = 0.01
"""How far above the least price the labels of a completed plan may be, as a share of it."""


@module_pass("annotated", "distributed")
def PropagateSharding(
    costs: Costs | None = None,
    memory_bytes: int | None = None,
    system: CostModel | str | None = None,
    decision: Decision | None = None,
    complete: bool = False,
) -> Rewrite:
    """Give every tensor a mesh and a placement, private functions included.

    A drop-in for TVM's pass of this name, for modules with private functions, any number of
    meshes of any rank, tuples and every op that has a sharding rule.

    Valid in: level 2 (``R.dist.annotate_sharding`` on plain tensors). Valid out: level 3
    (DTensors everywhere, ``R.dist.redistribute`` and ``R.dist.partial`` where forms change).
    A private function gets one specialization per distinct placement of its arguments and
    results, named ``f``, ``f_1``, ... in order of first call. The input module is not changed.

    Where the module has labels of its plan (the attribute ``dist.labels``), these are written, and
    nothing is decided.

    Parameters
    ----------
    costs : Costs, optional
        Weights of communicated bytes, memory traffic and FLOPs.
    memory_bytes : int, optional
        Maximum memory of each device in bytes, see :func:`~.decide.propagate`.

    system : System, CostModel or str, optional
        System whose times determine the costs if none are given.
    decision : Decision, optional
        An earlier decision on this module, whose branches must be lifted already; it is applied
        as it is.
    complete : bool
        Whether any axis may shard any dim of tensors that annotations leave open, and not only
        dims that follow from the annotations. With a system, and no
        costs, the placements are then those of least time
        (:meth:`.CostModel.cheapest_placements`), at most 1 % above it.

    Raises
    ------
    InfeasibleError
        DIST0801 when no placement found fits into ``memory_bytes``.
    PropagationError
        DIST04xx, naming the binding.
    LevelError
        DIST0453 for a module that is not well-formed; its types are checked where the pass fails.
    PlanError
        DIST0237 where labels by a system's times are asked for of a function on several meshes.
    """
    model = CostModel.resolve(system)

    def run(mod: ir.IRModule) -> ir.IRModule:
        if decision is not None:
            return sink_conversions(ModuleRewriter(mod, decision).run())
        with well_formed_first(mod):
            return decided(mod)

    def decided(mod: ir.IRModule) -> ir.IRModule:
        mod = lift_branches(canonical(mod))
        if mod.attrs and LABELS_ATTR in mod.attrs:
            placements = decision_of_labels(mod, json.loads(str(mod.attrs[LABELS_ATTR])))
        elif complete and model is not None and costs is None:
            placements = _completed(mod, model, memory_bytes)
        else:
            weights = costs if costs or model is None else model.placement_costs(mod)
            placements = propagate(mod, weights, memory_bytes, complete)
        return sink_conversions(ModuleRewriter(mod, placements).run())

    return run


def _completed(mod: ir.IRModule, model: CostModel, memory_bytes: int | None) -> Decision:
    """Return the cheapest labels of values that annotations leave open, by a system's times.

    Where annotations allow nothing propagation by weights says which, and why.
    """
    try:
        with gc_paused():
            return model.cheapest_placements(mod, COMPLETED, memory_bytes)
    except InfeasibleError as error:
        if error.code != "DIST0802":
            raise
        return propagate(mod, model.placement_costs(mod), memory_bytes, True)


class ModuleRewriter:
    """A writer of the functions of a decision into a new module."""

    def __init__(self, mod: ir.IRModule, decision: Decision) -> None:
        self.mod, self.decision = mod, decision
        self.functions: dict[ir.GlobalVar, ir.BaseFunc] = {}
        self.used_names = {str(gv.name_hint) for gv in mod.functions}
        self.used: set[str] = set()
        self.names: dict[int, str] = {}
        self.visited: set[int] = set()

    def run(self) -> ir.IRModule:
        """Return the public functions by name, private ones as they are called; kernels stay."""
        for gv, fn in self.mod.functions.items():
            if not isinstance(fn, relax.Function):
                self.functions[gv] = fn
        names = [str(gv.name_hint) for gv, _ in relax_functions(self.mod)]
        entries = {n: self.decision.entries[n] for n in names if n in self.decision.entries}
        for entry in entries.values():
            self.name_kids(entry)
        for name, entry in entries.items():
            unrolled(self._write(entry, name))
        attrs = {str(k): v for k, v in (self.mod.attrs or {}).items() if str(k) != LABELS_ATTR}
        attributes = ir.make_node("ir.DictAttrs", **attrs)
        return ir.IRModule(self.functions, attrs=attributes, global_infos=self.mod.global_infos)

    def name_kids(self, entry: Instance) -> None:
        """Reserve names of specializations in order of first call, outermost first."""
        pending = [entry]
        while pending:
            inst = pending.pop()
            if inst.number in self.visited:
                continue
            self.visited.add(inst.number)
            kids = [kid for _, kid in sorted(inst.kids.items())]
            for kid in kids:
                if kid.number not in self.names:
                    self.names[kid.number] = first_or_new_name(
                        kid.graph.name, self.used, self.used_names
                    )
            pending += reversed(kids)

    @memoized_steps
    def _write(self, inst: Instance, name: str) -> Steps[ir.GlobalVar]:
        """Write an instance once, its callees before it."""
        callees = {}
        for k, kid in sorted(inst.kids.items()):
            callees[k] = yield self._write(kid, self.names[kid.number])
        old = self.mod[inst.graph.name]
        attrs = {
            str(k): v
            for k, v in (old.attrs or {}).items()
            if str(k) not in (OPEN_AXES_ATTR, STATIONARY_ATTR)
        }
        if not inst.graph.public:
            partial = self._partial(inst)
            if partial["params"] or partial["results"]:
                attrs[PARTIAL_ATTR] = partial
        rewriter = FunctionRewriter(self.mod, self.decision, inst, old, callees)
        fn = rewriter.run(tvm.ir.make_node("ir.DictAttrs", **attrs) if attrs else None)
        gv = typed(ir.GlobalVar(name), fn.ty)
        self.functions[gv] = fn
        return gv

    def _partial(self, inst: Instance) -> dict[str, dict[str, list[int]]]:
        """Return the partial parameters and results by flat index: mesh axes."""
        g, decision = inst.graph, self.decision
        params = [decision.value_layout(inst, v) for v in g.param_values]
        results = [
            decision.needs(inst, k, 0, g.values[v].mesh) if v >= 0 else ()
            for k, v in zip(g.rets, g.result_values, strict=True)
        ]
        partial: dict[str, dict[str, list[int]]] = {}
        for side, layouts in (("params", params), ("results", results)):
            axes = [[a for a, x in enumerate(layout) if x < -1] for layout in layouts]
            partial[side] = {str(i): pending for i, pending in enumerate(axes) if pending}
        return partial
