# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Defines sharding rules of packed functions (``R.call_packed``), with their opaque objects.

An object (a cache, a state) exists once per device. Every device runs the same calls on its
object, on full tensors, unless a rule says which dims may be sharded: a cache that is sharded by
heads holds the heads of its device.

>>> @register_packed_rule("my.cache_append")
... def append(call):
...     ties = [({0: d, 1: d}, {0: d}) for d in range(1, len(call.ins[1]))]
...     return PackedForm(ties, holds={0: call.ins[1]})
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir.types import flat_types, static_shape, tensor_type, value_types
from tvm_distir.support import PropagationError, StringImm

from .dims import size_bytes
from .factor import Factor, Rule, Work
from .registry import load_entry_points, note_change

CACHE = "vm.builtin.attention_kv_cache_"
_DISTRIBUTED = "vm.builtin.distributed."
FUSED_ATTENTION = f"{CACHE}attention_with_fused_qkv"
INTERLEAVED_ATTENTION = FUSED_ATTENTION.replace("vm.builtin.", _DISTRIBUTED, 1)
"""The same function of a cache with the heads of a device, on interleaved heads; followed by the
number of devices, as ``.2``."""
_PARTS = re.compile(rf"(?<=^{re.escape(INTERLEAVED_ATTENTION)})\.\d+$")

PACKED_OPS = ("relax.call_pure_packed", "relax.call_dps_packed")
"""Ops whose first argument is a packed function, which they call on the others."""

EFFECTS = ("relax.print", "relax.assert_op")
"""Ops that each device runs on full tensors, as it calls a packed function without a rule."""

_DRAWS = re.compile(r"(^|[._])(random|rand|rng|randn|seed|dropout)([._]|$)")
"""Names of functions that generate numbers from a separate random stream."""

CACHE_HEADS = 1
"""The dim of a cache, (positions, heads, size), by which plans divide it."""

HEAD_ARGUMENTS: dict[str, tuple[int, ...]] = {"mlc.create_paged_kv_cache_generic": (4, 5)}
"""The arguments of functions that create caches which are numbers of heads: of queries and keys."""

Dims = tuple[Any, ...]
Tie = tuple[Mapping[int, int], Mapping[int, int]]
"""Operand number to dim, result number to dim: dims that are sharded together."""


@dataclass(frozen=True)
class PackedCall:
    """Call of a packed function as its rule receives it.

    Attributes
    ----------
    name : str
    args : tuple of Expr
        The arguments, shapes and scalars included.
    ins : tuple of (tuple or None)
        Dims of each flattened tensor or object operand; of an object the dims of what it holds,
        None where that is not known.
    outs : tuple of (tuple or None)
        Dims of each flattened result, None for an object.
    """

    name: str
    args: tuple[Any, ...]
    ins: tuple[Dims | None, ...]
    outs: tuple[Dims | None, ...]


@dataclass(frozen=True)
class PackedForm:
    """Description of how the call of a packed function may be sharded.

    Attributes
    ----------
    ties : sequence of Tie
        Dims that are sharded together; each dim is in at most a single tie.
    holds : mapping of int to tuple
        The dims of the contents of each result that is an object.
    shapes : mapping of int to (str, int)
        Arguments that state a shape, and whose: ``("in", operand)`` or ``("out", result)``. On
        shards its dims are sharded as that tensor's.
    """

    ties: Sequence[Tie] = ()
    holds: Mapping[int, Dims] = field(default_factory=dict)
    shapes: Mapping[int, tuple[str, int]] = field(default_factory=dict)


PackedWriter = Callable[[PackedCall], PackedForm]
_writers: dict[str, PackedWriter] = {}


def register_packed_rule(
    *names: str, override: bool = False
) -> Callable[[PackedWriter], PackedWriter]:
    """Register how calls of packed functions may be sharded.

    Parameters
    ----------
    names : str
        Global names, such as ``vm.builtin.attention_kv_cache_append``.
    override : bool
        Replace a rule that exists.

    Raises
    ------
    PropagationError
        DIST0406 when a function has a rule already.
    """

    def keep(writer: PackedWriter) -> PackedWriter:
        for name in names:
            if name in _writers and not override:
                problem = "the packed function already has a sharding rule"
                remedy = "Pass override=True to replace it."
                raise PropagationError("DIST0406", problem, location=name, remedy=remedy)
            _writers[name] = writer
        note_change()
        return writer

    return keep


def packed_functions() -> tuple[str, ...]:
    """Return the names of the packed functions with a rule, sorted."""
    load_entry_points()
    return tuple(sorted(_writers))


def is_packed_call(expr: ir.Expr) -> bool:
    """Return whether an expression calls a packed function, directly or by an op that does so."""
    if type(expr) is not ir.Call:
        return False
    op = expr.op
    if type(op) is ir.Op:
        calls = str(op.name) in PACKED_OPS and isinstance(expr.args[0], relax.ExternFunc)
        return calls or str(op.name) in EFFECTS
    return type(op) is relax.ExternFunc


def creates_cache(value: Any) -> bool:
    """Return whether an expression creates a cache whose heads can be divided."""
    return is_packed_call(value) and packed_name(value) in HEAD_ARGUMENTS


def packed_args(call: ir.Call) -> list[Any]:
    """Return the arguments that the packed function of a call gets."""
    if isinstance(call.op, relax.ExternFunc) or str(call.op.name) in EFFECTS:
        return list(call.args)
    rest = list(call.args)[1:]
    if str(call.op.name) == "relax.call_dps_packed" and isinstance(rest[0], relax.Tuple):
        return list(rest[0].fields)
    return rest


def packed_types(call: ir.Call) -> list[ir.Type]:
    """Return the leaf types of its arguments that carry values. In TVM 0.26 a text is an object."""
    arguments = (a for a in packed_args(call) if type(a) is not StringImm)
    return [t for a in arguments for t in value_types(a.ty)]


def packed_name(call: ir.Call) -> str:
    """Return the global name of the packed function of a call, as it is called on a device."""
    return _PARTS.sub("", _symbol(call)).replace(_DISTRIBUTED, "vm.builtin.", 1)


def interleaved_parts(call: ir.Call) -> int | None:
    """Return for how many parts the heads of a call are interleaved, None for other calls."""
    parts = _PARTS.search(_symbol(call))
    return int(parts[0][1:]) if parts is not None else None


def _symbol(call: ir.Call) -> str:
    if isinstance(call.op, ir.Op) and str(call.op.name) in EFFECTS:
        return str(call.op.name)
    called = call.op if isinstance(call.op, relax.ExternFunc) else call.args[0]
    return str(called.global_symbol)


def rule_name(call: ir.Call) -> str:
    """Return the name under which the rule of a packed function is registered.

    A call that stands for one on each device, ``vm.builtin.distributed.*``, may have its own rule.
    """
    name = _PARTS.sub("", _symbol(call))
    return name if name in _writers else packed_name(call)


def packed_form(call: ir.Call, placements: Sequence[Dims | None]) -> tuple[PackedCall, PackedForm]:
    """Describe a call and look up how it may be sharded.

    Parameters
    ----------
    call : Call
        A call of an ``ExternFunc``.
    placements : sequence
        The dims of the contents of each flattened operand that is an object; the entries of other
        operands are not read.

    Raises
    ------
    PropagationError
        DIST0401 for a function that draws random numbers, DIST0402 for an unknown shape.
    """
    load_entry_points()
    name = rule_name(call)
    leaves = packed_types(call)
    ins = tuple(
        _dims(name, t) if tensor_type(t) is not None else (dims or None)
        for t, dims in zip(leaves, placements, strict=True)
    )
    results = [t for ty in call.ty_args for t in flat_types(ty)]
    outs = tuple(_dims(name, t) if tensor_type(t) is not None else None for t in results)
    seen = PackedCall(name, tuple(packed_args(call)), ins, outs)
    if name in _writers:
        return seen, _writers[name](seen)
    if _DRAWS.search(name):
        raise PropagationError(
            "DIST0401",
            "it has its own random state: devices would sample different numbers, or the "
            "numbers would depend on the sharding",
            location=name,
            remedy="Sample outside and pass the numbers in (multinomial_from_uniform takes them), "
            "or register_packed_rule if all devices sample the same numbers.",
        )
    return seen, PackedForm()


def _dims(name: str, ty: ir.Type) -> Dims:
    result = static_shape(ty)
    if result is None:
        problem = f"the shape of {ty} is not known"
        raise PropagationError("DIST0402", problem, location=name, remedy="Give it a known shape.")
    return result


def packed_rule(call: ir.Call, placements: Sequence[Dims | None]) -> tuple[Rule, list[Dims]]:
    """Return the rule of the call of a packed function, and the dims of its results.

    Raises
    ------
    PropagationError
        As :func:`packed_form`; DIST0403 for a rule that names what the call does not have.
    """
    seen, layout = packed_form(call, placements)
    results = [
        layout.holds.get(j, ()) if dims is None else dims for j, dims in enumerate(seen.outs)
    ]
    tied = (_factor(seen.name, tie, seen.ins, results) for tie in layout.ties)
    factors = tuple(factor for factor in tied if factor is not None)
    sizes = tuple(map(_bytes, packed_types(call)))
    written_bytes = tuple(_bytes(t) for ty in call.ty_args for t in flat_types(ty))
    why = {
        f"{side}{i}.dim{d}": "the packed function requires the full dim (register_packed_rule)"
        for side, rows in (("in", seen.ins), ("out", results))
        for i, dims in enumerate(rows)
        for d in range(len(dims or ()))
    }
    return Rule(
        seen.name, factors, (), 0, sizes, written_bytes, why, Work(0, sizes, written_bytes)
    ), results


def _bytes(ty: ir.Type) -> int:
    tensor: Any = tensor_type(ty)
    return 0 if tensor is None else size_bytes(static_shape(tensor) or (), str(tensor.dtype))


def _factor(name: str, tie: Tie, ins: Sequence[Dims | None], outs: Sequence[Dims]) -> Factor | None:
    """Return the factor of a tie; None where its dims are of extent 1 or unknown."""
    sizes, rows = [], []
    for numbers, shapes in zip(tie, (ins, outs), strict=True):
        row: list[int | None] = [None] * len(shapes)
        for number, dim in numbers.items():
            dims = shapes[number] if number < len(shapes) else ()
            if dims is None or not dims:  # an object of which nothing is known
                continue
            if not 0 <= dim < len(dims):
                problem = f"it declares an equivalence of dim {dim} of shape {list(map(str, dims))}"
                remedy = "Correct the rule of the packed function."
                raise PropagationError(
                    "DIST0403", problem, location=f"rule of {name}", remedy=remedy
                )
            row[number] = dim
            sizes.append(dims[dim])
        rows.append(tuple(row))
    if not sizes or all(isinstance(n, int) and n == 1 for n in sizes):
        return None
    return Factor(sizes[0], rows[0], rows[1])


# TVM's attention cache: what is appended along dim 0 and viewed, cut alike along the other dims


@register_packed_rule(f"{CACHE}create")
def cache_create(call: PackedCall) -> PackedForm:
    """Shard the cache of ``(init, shape, fill)`` like its first contents."""
    init = call.ins[0] or ()
    return PackedForm([({0: d}, {0: d}) for d in range(1, len(init))], {0: init}, {1: ("in", 0)})


@register_packed_rule(f"{CACHE}append", f"{CACHE}update", f"{CACHE}window_override")
def cache_append(call: PackedCall) -> PackedForm:
    """Shard ``cache`` and ``data`` equally; rows stay in order, so dim 0 is replicated."""
    data = call.ins[1] or ()
    return PackedForm([({0: d, 1: d}, {0: d}) for d in range(1, len(data))], {0: data})


@register_packed_rule(
    *(f"{CACHE}{name}" for name in (
        "attention_with_fused_qkv", "self_attention", "cross_attention", "append_mla_kv",
        "merge_attn_output_inplace", "get_query_positions",
    )),
    "vm.builtin.rnn_state_get", "vm.builtin.rnn_state_set",
)  # fmt: skip
def paged_cache_call(call: PackedCall) -> PackedForm:
    """Replicate the operands: the cache of each device holds all heads of all sequences."""
    return PackedForm()


@register_packed_rule(INTERLEAVED_ATTENTION)
def interleaved_attention(call: PackedCall) -> PackedForm:
    """Shard ``(cache, layer, scale, qkv)`` by heads, of which each device has a part of q, k and v.

    The heads of ``qkv`` are interleaved for the devices (:class:`.segments.Segments`): the call has
    a meaning on shards only, each with a cache of its heads.
    """
    return PackedForm([({len(call.ins) - 1: 1}, {0: 1})])


@register_packed_rule(f"{CACHE}view")
def cache_view(call: PackedCall) -> PackedForm:
    """Shard the contents of ``(cache, shape)`` like the cache."""
    out = call.outs[0] or ()
    ties = [({0: d}, {0: d}) for d in range(1, len(out))]
    return PackedForm(ties, shapes={1: ("out", 0)} if len(call.args) > 1 else {})
