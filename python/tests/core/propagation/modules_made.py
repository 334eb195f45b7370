# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Small modules and how they are distributed, for the tests of propagation."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import relax

from tvm_distir.core.analysis.levels import check_level
from tvm_distir.core.ir.placement import labels_of
from tvm_distir.core.passes.annotate.passes import AnnotateSharding
from tvm_distir.core.passes.propagate.passes import PropagateSharding
from tvm_distir.core.plan.plan import Plan

F32 = "float32"


def tensor(*shape):
    """A float32 tensor type."""
    return relax.TensorType(shape, F32)


def build(params, body, private=()):
    """A module with ``main`` and, before it, private functions {name: (params, body)}."""
    bb, gvs = relax.BlockBuilder(), {}
    for name, (inner, inner_body) in dict(private).items():
        with bb.function(name, inner, private=True):
            with bb.dataflow():
                out = bb.emit_output(inner_body(bb.emit, gvs))
            gvs[name] = bb.emit_func_output(out)
    with bb.function("main", params):
        with bb.dataflow():
            out = bb.emit_output(body(bb.emit, gvs))
        bb.emit_func_output(out)
    return bb.get()


def distribute(mod, rules, **mesh):
    """Annotate and propagate; the result is checked, printed and parsed back."""
    plan = Plan.from_dict({"schema_version": 1, "mesh": mesh, "rules": rules})
    annotated = AnnotateSharding(plan)(mod)
    before = annotated.script(show_meta=True)
    out = PropagateSharding()(annotated)
    assert annotated.script(show_meta=True) == before
    relax.analysis.well_formed(out)
    check_level(out, 3)
    again = tvm.script.from_source(out.script(show_meta=True))
    assert tvm_ffi.structural_equal(again, out)
    return out


def moves(mod):
    """(from, to) placement texts of every redistribute, function by function."""
    matches = []
    for _, fn in sorted((str(g.name_hint), f) for g, f in mod.functions.items()):
        for block in fn.body.blocks:
            for b in block.bindings:
                if isinstance(b.value, tvm.ir.Call) and "redistribute" in str(b.value.op):
                    matches.append(
                        (labels_of(b.value.args[0].ty.placement), labels_of(b.var.ty.placement))
                    )
    return matches


def placement(mod, param, fn="main"):
    """Labels of a parameter."""
    return labels_of(next(p for p in mod[fn].params if p.name == param).ty.placement)
