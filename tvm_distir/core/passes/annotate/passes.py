# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``AnnotateSharding`` applies a plan to a module, from level 1 (global) to level 2 (annotated).

Before::

    def main(x: R.Tensor((8, 4)), w: R.Tensor((4, 4))):
        lv = R.matmul(x, w)

After, with ``{"param": "x", "placement": "S[0], ?", "stationary": true}``::

    def main(x: R.Tensor((8, 4)), w: R.Tensor((4, 4))):
        R.func_attr({"dist.stationary": ["x_placed"], "dist.open_axes": {"x_placed": [1]}})
        x_placed = R.dist.annotate_sharding(x, device_mesh="mesh[0]", placement="S[0], R")
        lv = R.matmul(x_placed, w)

TVM's op can say neither "open" nor "stationary". An open axis is written ``R`` in the
annotation and its number noted in the function attribute ``dist.open_axes``; stationary
variables are listed in ``dist.stationary``; both by the name of the annotated variable, which
is unique in its function. Propagation reads both attributes and drops them. What is stationary
along some axes only is annotated twice: where it lies, and, stationary, along those axes alone.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

from tvm import ir
from tvm.relax import Function

from tvm_distir.core.analysis.levels import refuse_dtensors
from tvm_distir.core.analysis.well_formed import well_formed_first
from tvm_distir.core.ir.attributes.keys import LABELS_ATTR
from tvm_distir.core.ir.mesh import (
    AXES_ATTR,
    DEVICE_NUM_ATTR,
    MESH_INFO,
    NAMES_ATTR,
    mesh_axes,
    mesh_devices,
    mesh_key,
    mesh_names,
    meshes,
)
from tvm_distir.core.ir.operators.names import free_name
from tvm_distir.core.ir.segments import Segments
from tvm_distir.core.ir.types import is_private, known_shape, relax_functions
from tvm_distir.core.ops.packed import CACHE_HEADS
from tvm_distir.core.passes.declaration import Rewrite, module_pass
from tvm_distir.core.plan.matching import FunctionTargets, resolve
from tvm_distir.core.plan.plan import Plan
from tvm_distir.core.plan.recomputation import check_policies
from tvm_distir.core.plan.schedules.notes import scheduled
from tvm_distir.core.plan.schema import PlanRule
from tvm_distir.core.rewriting.canonical import canonical
from tvm_distir.core.rewriting.scopes import all_bindings
from tvm_distir.core.rewriting.static_shapes import fold_shapes
from tvm_distir.core.rewriting.tuple_parameters import open_tuples
from tvm_distir.support import PlanError

from .annotator import Annotator
from .created_caches import divide_heads
from .interleaved_calls import InterleavedFunctions
from .kept_rows import keep_rows


@module_pass(("global", "annotated"), "annotated")
def AnnotateSharding(plan: Plan) -> Rewrite:
    """Put ``R.dist.annotate_sharding`` on the tensors that a plan names.

    Each parameter is annotated once, at the top of its function, and used in that form;
    a named value right after it is bound; a call's argument right before the call. Tuple
    parameters of public functions are opened first (:func:`.tuple_parameters.open_tuples`), and
    shapes that types state become constants (:func:`.static_shapes.fold_shapes`).
    Sets ``global_infos["mesh"]`` and the module attributes ``mesh_axes``, ``mesh_names`` and
    ``device_num`` (one more than the highest device id). Meshes the module has already are
    kept, after those of the plan, when annotations use them.

    Labels of the plan go along as the module attribute ``dist.labels``; they say of every value
    what rules say of some, so that only rules that these were decided under are annotated.

    Parameters
    ----------
    plan : Plan
        The plan, with meshes and rules.

    Returns
    -------
    Pass
        A module pass. It raises, besides what :func:`tvm_distir.core.plan.matching.resolve` raises,
        LevelError DIST0451 on a module that holds DTensors, DIST0453 on one that is not
        well-formed; its types are checked where the pass fails.
    """
    return lambda mod: annotate_module(mod, plan)


def annotate_module(mod: ir.IRModule, plan: Plan) -> ir.IRModule:
    """Apply the pass to a module, which is not modified."""
    with well_formed_first(mod):
        return _annotate(mod, plan)


def _annotate(mod: ir.IRModule, plan: Plan) -> ir.IRModule:
    for gv, fn in relax_functions(mod):
        problem = "the module contains DTensors: it is already annotated and propagated"
        refuse_dtensors(str(gv.name_hint), fn, problem, "Annotate the module before propagation.")
    mod = open_tuples(fold_shapes(canonical(mod)))
    check_policies(plan.recompute, mod)
    schedule = scheduled(plan.schedule, mod)
    rules, labels = plan.rules, plan.labels
    if labels is not None:  # what the others say, the labels say of every value
        rules = rules[: labels["rules"]]
    mod = keep_rows(mod, rules)
    targets = resolve(replace(plan, rules=rules), mod)
    device_meshes, names, axes = _all_meshes(mod, plan)
    by_name = {spec.name: device_meshes[i] for i, spec in enumerate(plan.meshes)}
    functions = {}
    mod, targets = _interleaved(mod, plan, targets)
    for gv, fn in mod.functions.items():
        target = targets.get(str(gv.name_hint))
        if target is not None:
            fn = _with_divided_caches(fn, str(gv.name_hint), plan, target)
        functions[gv] = fn if target is None else Annotator(target, by_name).annotate(fn)
    attrs = dict(mod.attrs or {})
    attrs.update(schedule)
    attrs.pop(LABELS_ATTR, None)
    if labels is not None:
        attrs[LABELS_ATTR] = json.dumps(labels)
    attrs[AXES_ATTR] = axes
    attrs[NAMES_ATTR] = names
    attrs[DEVICE_NUM_ATTR] = 1 + max(int(mesh_devices(mesh).max()) for mesh in device_meshes)
    infos = {str(key): list(value) for key, value in mod.global_infos.items()}
    infos[MESH_INFO] = device_meshes
    return ir.IRModule(functions, attrs=ir.make_node("ir.DictAttrs", **attrs), global_infos=infos)


def _interleaved(
    mod: ir.IRModule, plan: Plan, targets: dict[str, FunctionTargets]
) -> tuple[ir.IRModule, dict[str, FunctionTargets]]:
    """Return the module for parameters whose rules have segments, and the rules of its functions.

    The functions that entries call with interleaved values are specialized.
    """
    segments_of: dict[Any, dict[int, Segments]] = {}
    for gv, fn in mod.functions.items():
        name = str(gv.name_hint)
        for position, rule in targets[name].params.items() if name in targets else ():
            segments = _segments(fn, f"{name}/{fn.params[position].name}", plan, position, rule)
            if segments is not None:
                segments_of.setdefault(gv, {})[position] = segments
    if not segments_of:
        return mod, targets
    functions = InterleavedFunctions(mod, targets)
    for gv, segments_of_params in segments_of.items():
        functions.interleave_entry(gv, segments_of_params)
    return functions.module(), functions.targets


def _with_divided_caches(fn: Function, name: str, plan: Plan, target: FunctionTargets) -> Function:
    """Return the function whose caches have the heads of a device, as rules ask for."""
    if not target.caches:
        return fn
    parts = {}
    for var, rule in target.caches.items():
        sizes = plan.mesh(rule.mesh, name).shape
        axes = [axis for axis, label in enumerate(rule.placement) if label == CACHE_HEADS]
        parts[var] = math.prod(sizes[axis] for axis in axes)
    return divide_heads(fn, name, parts)


def _segments(
    fn: Function, location: str, plan: Plan, position: int, rule: PlanRule
) -> Segments | None:
    """Return how the segments of a parameter are interleaved, None where they need not be.

    Raises
    ------
    PlanError
        DIST0221 for segments that are no dim of the parameter, or of a private function; DIST0234
        where the devices do not divide a segment.
    """
    if not rule.segments:
        return None
    shape, mesh = known_shape(fn.params[position].ty) or (), plan.mesh(rule.mesh, location)
    cut = sorted({label for label in rule.closed_labels if label >= 0})
    dims = [dim for dim in cut if dim < len(shape) and shape[dim] == sum(rule.segments)]
    if not dims or is_private(fn):
        raise PlanError(
            "DIST0221",
            f"the segments {list(rule.segments)} have {sum(rule.segments)} rows, and no sharded "
            f"dim of the parameter, of shape {list(shape)}, has as many",
            location=location,
            remedy="Give the segments of a sharded dim of a parameter of an entry.",
        )
    axes = [axis for axis, label in enumerate(rule.closed_labels) if label == dims[0]]
    parts = math.prod(mesh.shape[axis] for axis in axes)
    broken = [size for size in rule.segments if size % parts]
    if broken:
        problem = f"the segment of {broken[0]} rows is not divisible by {parts} devices"
        remedy = "Choose a size of the mesh axis that divides every segment."
        raise PlanError("DIST0234", problem, location=location, remedy=remedy)
    return Segments(dims[0], rule.segments, parts) if parts > 1 else None


def _all_meshes(mod: ir.IRModule, plan: Plan) -> tuple[list[Any], list[str], list[list[str]]]:
    """Return the meshes of the plan and the annotations, with their names and axis names."""
    module_meshes = meshes(mod)
    objects = {mesh_key(mesh): mesh for mesh in reversed(module_meshes)}
    merged, names, axes = [], [], []
    for spec in plan.meshes:
        mesh = spec.device_mesh()
        merged.append(objects.get(mesh_key(mesh), mesh))
        names.append(spec.name)
        axes.append(list(spec.axis_names))
    keys = [mesh_key(mesh) for mesh in merged]
    used = _used_meshes(mod) if module_meshes else []
    for mesh, name, row in zip(module_meshes, mesh_names(mod), mesh_axes(mod)):
        if mesh_key(mesh) in used and mesh_key(mesh) not in keys:
            keys.append(mesh_key(mesh))
            merged.append(mesh)
            names.append(free_name(name, names))
            axes.append(row)
    return merged, names, axes


def _used_meshes(mod: ir.IRModule) -> list[Any]:
    keys = []
    for fn in mod.functions.values():
        for binding in all_bindings(getattr(fn, "body", None)):
            attrs = getattr(getattr(binding, "value", None), "attrs", None)
            mesh = getattr(attrs, "device_mesh", None)
            if mesh is not None:
                keys.append(mesh_key(mesh))
    return keys
