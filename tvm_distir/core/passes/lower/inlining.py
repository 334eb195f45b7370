# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Inline private functions that span several meshes, so that entries can be split by mesh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import ir, relax
from tvm.ir import Expr

from tvm_distir.core.ir.mesh import mesh_key
from tvm_distir.core.ir.operators import ops
from tvm_distir.core.ir.operators.ops import dist_op_name
from tvm_distir.core.rewriting.calls import bindings_of, typed, untupled
from tvm_distir.core.rewriting.functions import callee_of
from tvm_distir.core.rewriting.substitute import substitute
from tvm_distir.core.rewriting.writer import with_body


class _Splicer:
    """A writer of a function with some callees inlined."""

    def __init__(self, bodies: Mapping[str, relax.Function], first_tag: int) -> None:
        self.bodies = bodies
        self.next_tag = first_tag
        self.bindings: list[relax.Binding] = []
        self.moved: dict[Any, Any] = {}

    def copy(self, fn: relax.Function, name: str, env: dict[Expr, Expr], inner: bool) -> Expr:
        """Append a body; return its result. Transfers of an inner body get separate tags.

        What calls share, such as a mask, is sent once: later transfers of a value between the
        same meshes, with the same placements, are those of the first.
        """
        tags: dict[int, int] = {}
        for var, value in bindings_of(fn, name):
            new = untupled(substitute(value, env))
            callee = "" if callee_of(new) is None else str(new.op.name_hint)
            if callee in self.bodies:
                body = self.bodies[callee]
                new = self.copy(body, callee, dict(zip(body.params, new.args)), True)
            elif inner and dist_op_name(new) in ("send", "recv"):
                new = self._retagged(new, tags)
            if isinstance(new, ir.Var) and not isinstance(value, ir.Var):
                env[var] = new
                continue
            transfer = _transfer(new)
            if transfer in self.moved:
                env[var] = self.moved[transfer]
                continue
            env[var] = relax.Var(var.name, var.ty)
            if transfer is not None:
                self.moved[transfer] = env[var]
            self.bindings.append(relax.VarBinding(env[var], new))
        return substitute(fn.body.body, env)

    def _retagged(self, call: ir.Call, tags: dict[int, int]) -> ir.Call:
        old = int(call.attrs["tag"])
        if old not in tags:
            tags[old] = self.next_tag
            self.next_tag += 1
        make = getattr(ops, str(dist_op_name(call)))
        new = make(*call.args, **{**dict(call.attrs.items()), "tag": tags[old]})
        return typed(new, call.ty)


def _transfer(call: Expr) -> Any:
    """Return a key that distinguishes transfers, without tags; None for other values."""
    kind = dist_op_name(call)
    if kind not in ("send", "recv"):
        return None
    attrs = call.attrs
    ends = (mesh_key(attrs["device_mesh"]), mesh_key(attrs["peer_mesh"]))
    placements = (str(attrs["placement"]), str(attrs["peer_placement"]))
    return kind, call.args[0], ends, placements


def inline_functions(
    mod: ir.IRModule, order: Sequence[tuple[Any, relax.Function]], names: Sequence[str]
) -> ir.IRModule:
    """Inline private functions of a module at level 4.

    Parameters
    ----------
    mod : IRModule
    order : sequence of (GlobalVar, Function)
        The Relax functions, callees first.
    names : sequence of str
        The functions to inline; they do not stay in the module.

    Returns
    -------
    IRModule
        Functions with something inlined have plain binding blocks only.
    """
    values = [value for gv, fn in order for _, value in bindings_of(fn, str(gv.name_hint))]
    transfers = [value for value in values if dist_op_name(value) in ("send", "recv")]
    tag = 1 + max((int(value.attrs["tag"]) for value in transfers), default=-1)
    bodies = {str(gv.name_hint): fn for gv, fn in order if str(gv.name_hint) in names}
    functions = {gv: fn for gv, fn in mod.functions.items() if str(gv.name_hint) not in bodies}
    for gv, fn in order:
        name = str(gv.name_hint)
        calls = [v for _, v in bindings_of(fn, name) if callee_of(v) is not None]
        if name in bodies or not any(str(c.op.name_hint) in bodies for c in calls):
            continue
        splicer = _Splicer(bodies, tag)
        result = splicer.copy(fn, name, {}, False)
        tag = splicer.next_tag
        block = relax.BindingBlock(splicer.bindings)
        functions[gv] = with_body(fn, fn.params, [block], result, bool(fn.is_pure))
    return ir.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
