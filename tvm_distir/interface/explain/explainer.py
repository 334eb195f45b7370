# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Collect the parts of a value's explanation."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from tvm import ir
from tvm.relax.distributed import DeviceMesh, DTensorType

from tvm_distir.core.analysis import check_level
from tvm_distir.core.ir import (
    Labels,
    check_module,
    labels_of,
    lift_branches,
    local_shape,
    mesh_names,
    mesh_shape,
    meshes,
    placement_text,
)
from tvm_distir.core.ops import nominal
from tvm_distir.core.passes import AnnotateSharding, PropagateSharding
from tvm_distir.core.plan import PlanLike, as_plan, plain_name
from tvm_distir.core.propagation import Costs, propagate
from tvm_distir.core.rewriting import all_bindings, canonical, open_dims
from tvm_distir.execution import ValueOrigin, explain_value
from tvm_distir.hardware import System, costs_for
from tvm_distir.interface.ordered_labels import ordered_words
from tvm_distir.models import TRACE_ATTR
from tvm_distir.support import LevelError, UsageError, shortened
from tvm_distir.transforms import OrderAxes, fused_for

from .explanation import Explanation
from .findings import ExplainedCollective, Resharding
from .instances import InstanceIndex
from .limits import Limits
from .picture import picture
from .placement_trials import PlacementTrials, cost_bytes
from .reasons import Reasons
from .subject import Subject
from .traffic import conversions, moves_of, traffic_cost_bytes, traffic_of

_IMMEDIATE = re.compile(r"T\.int64\((-?\d+)\)")
"""How TVM prints a number in an extent."""


def explain(
    mod: ir.IRModule,
    plan_or_value: PlanLike | str,
    value: str | None = None,
    /,
    *,
    plan: PlanLike = None,
    costs: Costs | None = None,
    system: System | str | None = None,
    alternatives: bool = True,
    reference: ir.IRModule | None = None,
    hints: Mapping[str, Mapping[str, int]] | None = None,
) -> Explanation | ValueOrigin:
    """Explain why propagation places a value as it does, and the cost of alternatives.

    Called as ``explain(mod, plan, value)``; the plan is left out for an annotated module, or given
    by its name. Of a program that others distributed, ``explain(ranks, value, reference=single)``
    says what a value stands for, and from which inputs and ops each mesh axis has its layout.

    Parameters
    ----------
    mod : IRModule
        Level 2 (annotated), or level 1 with a plan. It is not changed.
    value : str
        A variable (``lv19``), one of a function or specialisation (``layer_1/lv3``), or a
        parameter by the model's name. ``lv#1`` is the second variable of that name,
        ``lv.0`` the first field of a tuple.
    plan : Plan, mapping, str or Path, optional
        Annotates the module first.
    costs : Costs, optional
        The weights propagation decides with.
    system : System or str, optional
        Where no costs are given: they are in proportion to the times of this system.
    alternatives : bool
        Whether to solve again for each other placement of the value.
    reference, hints
        The program of a single device, and which dims mesh axes shard, as of
        :func:`tvm_distir.check`; no plan, costs or system.

    Returns
    -------
    Explanation, or ValueOrigin beside a reference

    Raises
    ------
    PropagationError
        DIST0430 for an unknown name, DIST0431 for one that is not clear or is no tensor; and what
        propagation raises.
    LevelError
        DIST0451 when the module is distributed already, and there is no reference.
    UsageError
        DIST0154 for an argument that is no module, DIST0151 for two plans, or for a plan beside a
        reference, DIST0152 for a value that is no name.

    Examples
    --------
    >>> mod = td.zoo.build("mlp", {"batch": 4, "layers": 1, "hidden": 8})
    >>> plan = td.Plan(mesh={"tp": 2}, rules={"x": td.P(None, "tp")})
    >>> print(td.explain(mod, plan, "matmul", alternatives=False))
    main/matmul: matmul, shape (4, 8)
      placement R on mesh0 (tp=2)
    ...
    """
    check_module(mod, "td.explain")
    if value is None:
        name: object = plan_or_value
    elif plan is None:
        name, plan = value, plan_or_value
    else:
        raise UsageError(
            "DIST0151", "two plans are given", location="td.explain", remedy="Remove one of them."
        )
    if not isinstance(name, str):
        raise UsageError(
            "DIST0152", f"{shortened(repr(name))} is not the name of a value",
            location="td.explain", remedy='Call td.explain(mod, plan, "name").',
        )  # fmt: skip
    if reference is not None:
        if plan is not None or costs is not None or system is not None:
            problem = "ranks that are distributed take no plan, costs or system"
            remedy = "Pass the reference alone, with hints."
            raise UsageError("DIST0151", problem, location="td.explain", remedy=remedy)
        return explain_value(mod, reference, name, hints)
    if TRACE_ATTR in (mod.attrs or {}):
        problem = "traces of ranks have placements beside their reference alone"
        remedy = "Pass reference=, the trace of a single rank."
        raise LevelError("DIST0451", problem, location="td.explain", remedy=remedy)
    resolved = None if plan is None and meshes(mod) else as_plan(plan, mod)
    if resolved is not None:
        mod = AnnotateSharding(resolved.by_rules())(fused_for(mod, resolved))
    check_level(mod, "annotated")
    mod = lift_branches(canonical(mod))
    costs = costs or costs_for(mod, system)
    complete = resolved is not None and resolved.complete
    index = InstanceIndex(mod, propagate(mod, costs, complete=complete))
    return _Explainer(Subject(index, index.find(name)), costs, alternatives, complete).run()


class _Explainer:
    """The explainer of a value in a decision."""

    def __init__(
        self, subject: Subject, costs: Costs | None, alternatives: bool, complete: bool
    ) -> None:
        self.subject, self.shows_alternatives = subject, alternatives
        self.reasons, self.limits = Reasons(subject), Limits(subject)
        self.alternatives = PlacementTrials(subject, self.limits, costs, complete)
        self.open_dims = tuple(dict.fromkeys(dim.name for dim in open_dims(subject.index.mod)))

    def run(self) -> Explanation:
        """Return the explanation, its parts in the order of printing."""
        s = self.subject
        local = local_shape(s.value.shape, s.labels, mesh_shape(s.mesh))
        local_bytes = math.prod(nominal(n) for n in local) * s.value.item_bytes
        traffic = traffic_of(s.decision)
        unknown = self.open_dims
        axes = tuple(self.reasons.of(i) for i in range(len(s.axes)))
        mesh, labels = self._ordered()
        names_of_axes = [s.axis_name(i) for i in range(len(s.axes))]
        title = f"{s.target.specialisation}/{s.target.name}"
        names = mesh_names(s.index.mod)
        return Explanation(
            name=title,
            function=s.target.function,
            made_by=self._made_by(),
            shape=tuple(str(n) for n in s.value.shape),
            local_shape=tuple(_IMMEDIATE.sub(r"\1", str(n)) for n in local),
            mesh=names[s.value.mesh],
            mesh_axes=tuple((s.axis_name(i), s.ranks(i)) for i in range(len(s.axes))),
            placement=", ".join(ordered_words(labels, mesh, s.mesh, names_of_axes)),
            open_dims=unknown,
            size_bytes=None if unknown else s.value.size_bytes,
            bytes_per_device=None if unknown else local_bytes,
            axes=axes,
            dims=tuple(self.limits.dim(d) for d in range(len(s.value.shape))),
            users=tuple(self._users()),
            moves=tuple(self._moves()),
            alternatives=()
            if unknown or not self.shows_alternatives
            else tuple(self.alternatives.each(traffic, axes)),
            specialisations=tuple(self._specialisations()),
            price=None if unknown else traffic_cost_bytes(traffic, s.decision),
            cost=None if unknown else cost_bytes(s.decision),
            wire_bytes=None if unknown else traffic.total_sent_bytes,
            picture=picture(s.value.shape, labels, mesh),
        )

    def _ordered(self) -> tuple[DeviceMesh, Labels]:
        """Return the view of the mesh on which the value is, and its labels there."""
        s = self.subject
        if all(s.labels.count(label) < 2 for label in s.labels if label >= 0):
            return s.mesh, s.labels
        mod = OrderAxes()(PropagateSharding(decision=s.decision)(s.index.mod))
        fn, name = mod[s.target.specialisation], plain_name(s.target.name)
        for var in (*fn.params, *(binding.var for binding in all_bindings(fn.body))):
            if plain_name(str(var.name)) == name and isinstance(var.ty, DTensorType):
                return var.ty.device_mesh, labels_of(var.ty.placement)
        return s.mesh, s.labels

    def _made_by(self) -> str:
        s = self.subject
        node = s.inst.graph.nodes[s.inst.graph.producer[s.v][0]]
        if node.kind == "op" and node.rule is not None:
            return node.rule.op.removeprefix("relax.")
        if node.kind == "call":
            kid = s.inst.kids[s.inst.graph.producer[s.v][0]]
            return f"call {s.index.name(kid)}"
        words = {"param": "parameter", "pin": "annotate_sharding", "move": "another mesh"}
        return words[node.kind]

    # where it goes ---------------------------------------------------------------------

    def _users(self) -> Iterator[tuple[str, str]]:
        s = self.subject
        for k, positions in s.inst.graph.uses[s.v]:
            for i in positions:
                labels = s.decision.needs(s.inst, k, i, s.value.mesh)
                yield s.node_text(s.inst, k), placement_text(labels)

    def _moves(self) -> Iterator[Resharding]:
        s = self.subject
        users = list(self._users())
        for have, want in moves_of(s.decision, s.inst, s.v):
            text = placement_text(want)
            steps = conversions(s.decision, s.inst, s.v, have, want)
            yield Resharding(
                placement_text(have),
                text,
                tuple(
                    ExplainedCollective(name, axis, 1, None if self.open_dims else sent)
                    for (name, axis), sent in steps
                ),
                tuple(dict.fromkeys(user for user, placement in users if placement == text)),
            )

    def _specialisations(self) -> Iterator[tuple[str, str]]:
        s = self.subject
        if s.inst.graph.public:
            return
        for inst in s.index.specialisations(s.target.function):
            labels = s.decision.route(inst, s.v).root
            yield s.index.name(inst), placement_text(labels)
