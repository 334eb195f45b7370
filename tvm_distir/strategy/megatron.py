# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Megatron's tensor parallelism of transformers, optionally with sequence parallelism.

Shoeybi et al. 2019, "Megatron-LM", section 3: projections into a block are cut by columns, those
out of it by rows, so that each block needs one all-reduce forward; the token table and the LM
head are cut by the vocabulary. Korthikanti et al. 2022, "Reducing Activation Recomputation",
section 4.2.2: between the blocks the residual stream is cut along the sequence.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, relax

from ..errors import PlanError
from ..ir import R, is_private, static_shape
from ..plan import MeshSpec, Plan, PlanRule, data_positions, faults_of_plan, plain_name
from .consumers import Consumers, Use
from .facts import (
    MeshLike,
    Parameter,
    as_mesh_spec,
    check_divisible,
    entries,
    mesh_axis,
    names_of,
    one_axis,
    parameter_rule,
    tensor_parameters,
)
from .registry import plan_maker

QUERY = ("q_proj", "query", "wq")
KEY_VALUE = ("k_proj", "v_proj", "key", "value", "wk", "wv")
GATE_UP = ("gate_proj", "up_proj", "c_fc", "fc1", "dense_h_to_4h", "fc_in", "w1", "w3")
ROW = ("o_proj", "out_proj", "down_proj", "c_proj", "fc2", "dense_4h_to_h", "fc_out", "wo", "w2")
FUSED = ("c_attn", "qkv_proj", "query_key_value")
EMBEDDING = ("wte", "embed_tokens", "tok_embeddings", "word_embeddings", "token_embedding")
HEAD = ("lm_head", "output_projection", "embed_out")
ROLES: dict[str, tuple[str, ...]] = {
    "query": QUERY,
    "key_value": KEY_VALUE,
    "gate_up": GATE_UP,
    "row": ROW,
    "fused": FUSED,
    "embedding": EMBEDDING,
    "head": HEAD,
}
"""Names, before ``.weight`` or ``.bias``, of the weights the strategy knows."""

COLUMN_ROLES = ("query", "key_value", "gate_up", "head")
SEQ_DIM = 1


@dataclass(frozen=True)
class _Weight:
    """A weight the strategy knows: its role, and how its consumers use it."""

    parameter: Parameter
    role: str
    is_bias: bool
    uses: tuple[Use, ...]


def role_of(name: str) -> tuple[str, bool] | None:
    """Return the role of a parameter by its name, and whether it is a bias; None for others."""
    found = re.fullmatch(r"(?:.*_)?(weight|bias)", plain_name(name))
    if found is None:
        return None
    stem = plain_name(name)[: -len(found[1]) - 1]
    for role, words in ROLES.items():
        if any(stem == word or stem.endswith("_" + word) for word in words):
            return role, found[1] == "bias"
    return None


@plan_maker
def megatron(mod: ir.IRModule, mesh: MeshLike, axis: str = "tp", sequence: bool = False) -> Plan:
    """Plan of Megatron's tensor parallelism for GPT- and Llama-like models.

    Weights are known by name (:data:`ROLES`); which of their dims is cut follows from the ops
    that consume them. Column parallel, with their biases: query, key, value, gate, up, and the
    head. Row parallel: the projections out of attention and feed-forward; their biases are
    replicated. The token table is cut by the vocabulary, evenly or not. A projection to query,
    key and value at once is replicated: contiguous shards of it are no heads. All other
    parameters are replicated too. Weights are stationary.

    Parameters
    ----------
    mod : IRModule
        At level 1.
    mesh : MeshSpec or mapping of str to int
    axis : str
        The mesh axis; other axes stay open.
    sequence : bool
        Cut the residual stream along the sequence, dim 1 of (batch, seq, hidden), between the
        blocks, inside private functions too: each all-reduce becomes a reduce-scatter and an
        all-gather.

    Returns
    -------
    Plan

    Raises
    ------
    MeshError
        DIST0206 when the mesh has no such axis.
    PlanError
        DIST0233 the model has no such weights, or uses them in an unknown way; DIST0234 heads,
        widths or the sequence are not divisible by the axis.
    """
    spec = as_mesh_spec(mesh)
    number = mesh_axis(spec, axis, "megatron")
    consumers = Consumers(mod)
    rules: list[PlanRule] = []
    for name, fn, rule_name in entries(mod):
        data = data_positions(fn, name)
        parameters = tensor_parameters(name, fn, rule_name)
        weights = [
            _known(parameter, fn, consumers)
            for parameter in parameters
            if parameter.position not in data
        ]
        known = {w.parameter.position: w for w in weights if w is not None}
        _check_complete(list(known.values()), [p for p in parameters if p.position not in data])
        faults = faults_of_plan(f"{name} (megatron)")
        for parameter in parameters:
            weight, label = known.get(parameter.position), R
            if weight is not None:
                with faults.gathered():
                    label = _label(weight, spec, axis, consumers)
            stationary = parameter.position not in data
            rules.append(parameter_rule(parameter, spec, number, label, stationary))
        faults.raise_all()
        if sequence:
            rows = [w for w in known.values() if w.role == "row" and not w.is_bias]
            rules.extend(_sequence_rules(rows, consumers, rule_name, spec, axis))
    return Plan((spec,), tuple(rules))


def _known(parameter: Parameter, fn: relax.Function, consumers: Consumers) -> _Weight | None:
    found = role_of(parameter.name)
    if found is None:
        return None
    uses = consumers.uses(parameter.entry, fn.params[parameter.position])
    return _Weight(parameter, found[0], found[1], tuple(uses))


def _check_complete(known: Sequence[_Weight], all_weights: Sequence[Parameter]) -> None:
    """Refuse a model without both kinds of projections (DIST0233)."""
    roles = {w.role for w in known if not w.is_bias}
    into = {"query", "gate_up"} & roles
    if into and "row" in roles:
        return
    entry = all_weights[0].entry if all_weights else "main"
    missing = ("column" if not into else "row") + "-parallel weights"
    looked = [f"*{word}.weight" for word in ((*QUERY, *GATE_UP) if not into else ROW)]
    raise PlanError(
        "DIST0233",
        f"no {missing}: looked for {', '.join(looked)} among {names_of(all_weights) or 'none'}",
        place=f"{entry} (megatron)",
        remedy="Name the weights so, or write the plan by hand.",
    )


def _label(weight: _Weight, mesh: MeshSpec, axis: str, consumers: Consumers) -> int:
    """Return the label of a known weight along the axis, its sizes checked."""
    parameter, role = weight.parameter, weight.role
    count = mesh.axes[axis]
    if weight.is_bias:
        if role not in COLUMN_ROLES or parameter.ndim < 1:
            return R
        if role != "head":
            _check_width(weight, parameter.ndim - 1, count, axis)
        return parameter.ndim - 1
    if role == "fused":
        _check_fused(weight, count, axis, consumers)
        return R
    dim = _cut_dim(weight)
    if role in ("embedding", "head"):
        return dim
    _check_heads(weight, dim, count, axis, consumers)
    _check_width(weight, dim, count, axis)
    return dim


def _cut_dim(weight: _Weight) -> int:
    """Return the dim that all consumers agree to be the one to cut (DIST0233)."""
    place = f"{weight.parameter.place} (megatron)"
    dims: list[int] = []
    for use in weight.uses:
        dim = use.contracted if weight.role == "row" else use.kept
        if use.kind == "other" or dim is None or (use.kind == "take" and weight.role == "row"):
            raise PlanError(
                "DIST0233",
                f"the weight is consumed by {use.op}, bound to "
                f"{use.function}/{getattr(use.result, 'name', '?')}, "
                "not by a matmul or take: which dim to cut is not known",
                place=place,
                remedy="Write the rule for this weight by hand.",
            )
        dims.append(dim)
    if len(set(dims)) != 1:
        what = "the weight has no consumer" if not dims else f"its consumers cut dims {dims}"
        raise PlanError(
            "DIST0233",
            f"{what}: which dim to cut is not clear",
            place=place,
            remedy="Write the rule for this weight by hand.",
        )
    return dims[0]


def _check_width(weight: _Weight, dim: int, count: int, axis: str) -> None:
    shape = weight.parameter.shape
    if shape is not None:
        place = f"{weight.parameter.place} (megatron)"
        check_divisible(shape[dim], count, f"dim {dim} of size", axis, place)


def _check_heads(weight: _Weight, dim: int, count: int, axis: str, consumers: Consumers) -> None:
    shape = weight.parameter.shape
    if weight.role not in ("query", "key_value") or shape is None:
        return
    what = "the number of heads" if weight.role == "query" else "the number of key/value heads"
    for use in weight.uses:
        heads = consumers.split_into(use.function, use.result, shape[dim])
        if heads is not None:
            _refuse_heads(weight, heads, count, axis, what)


def _check_fused(weight: _Weight, count: int, axis: str, consumers: Consumers) -> None:
    shape = weight.parameter.shape
    for use in weight.uses:
        if use.kind == "matmul" and use.kept is not None and shape is not None:
            heads = consumers.split_into(use.function, use.result, int(shape[use.kept]) // 3)
            if heads is not None:
                _refuse_heads(weight, heads, count, axis, "the number of heads")


def _refuse_heads(weight: _Weight, heads: int, count: int, axis: str, what: str) -> None:
    fitting = [n for n in range(1, heads + 1) if heads % n == 0]
    check_divisible(
        heads,
        count,
        what,
        axis,
        f"{weight.parameter.place} (megatron)",
        f'Give "{axis}" a size that divides {heads}: {", ".join(map(str, fitting))}.',
    )


def _sequence_rules(
    rows: Sequence[_Weight],
    consumers: Consumers,
    rule_name: str | None,
    mesh: MeshSpec,
    axis: str,
) -> list[PlanRule]:
    """Return the rules that cut the residual stream along the sequence, each target once."""
    placement = one_axis(mesh, mesh.axis_number(axis), SEQ_DIM)
    rules: dict[tuple[Any, ...], PlanRule] = {}
    for weight in rows:
        for use in weight.uses:
            found = consumers.residual(use.function, use.result)
            place = f"{weight.parameter.place} (megatron:sequence=1)"
            if found is None:
                raise PlanError(
                    "DIST0233",
                    "the projection's result is not added to a value of its shape: "
                    "the residual stream is not found",
                    place=place,
                    remedy="Use megatron without sequence=1, or write the plan by hand.",
                )
            _check_sequence(found.total, mesh.axes[axis], axis, place)
            fn = consumers.functions[found.function]
            where = found.function if is_private(fn) else rule_name
            if is_private(fn) and found.before in list(fn.params):
                arg = list(fn.params).index(found.before)
                rules[found.function, arg] = PlanRule(
                    "call", found.function, placement, mesh.name, function=rule_name, arg=arg
                )
            for value in (found.before, found.total):
                if isinstance(value, relax.Var) and value not in list(fn.params):
                    name = str(value.name)
                    rules[found.function, name] = PlanRule(
                        "value", name, placement, mesh.name, function=where
                    )
    return list(rules.values())


def _check_sequence(total: Any, count: int, axis: str, place: str) -> None:
    shape = static_shape(total.ty)
    if shape is None or len(shape) != 3:
        raise PlanError(
            "DIST0233",
            f"the residual stream has the shape {shape}, not (batch, seq, hidden)",
            place=place,
            remedy="Use megatron without sequence=1.",
        )
    check_divisible(shape[SEQ_DIM], count, "the sequence", axis, place)
