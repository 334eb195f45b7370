# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What the parameters of ``main`` are: data, indices with their range, weights with their role.

Roles come from the ops that consume a parameter, through views and private functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import ir, relax

from ..errors import ModelError
from ..ir import known_shape, num_input, param_names, tensor_type

# Which role wins when the consumers of one parameter disagree, strongest first.
ROLES = ("weight", "variance", "scale", "mean", "bias", "data")

# Gains beside 1 / sqrt(fan_in): a rectifier halves the variance (He et al. 2015); what is added to
# a residual stream is kept small, so that depth neither blows values up nor lets them vanish;
# where two branches join, neither is.
_RELU_GAIN = math.sqrt(2.0)
_RESIDUAL_GAIN = 0.5
_JOINT_GAIN = 1.0

# Ops whose operand 0 (or the listed ones) comes out with the same values.
_VIEWS: dict[str, tuple[int, ...]] = {
    "relax.astype": (0,),
    "relax.broadcast_to": (0,),
    "relax.dist.annotate_sharding": (0,),
    "relax.dist.redistribute": (0,),
    "relax.expand_dims": (0,),
    "relax.flatten": (0,),
    "relax.permute_dims": (0,),
    "relax.reshape": (0,),
    "relax.split": (0,),
    "relax.squeeze": (0,),
    "relax.strided_slice": (0,),
    "relax.where": (1, 2),
}
_RECTIFIERS = tuple(
    f"relax.nn.{name}" for name in ("gelu", "gelu_tanh", "leakyrelu", "prelu", "relu", "silu")
)
# Ops that scale or shift a weighted sum by something smaller.
_AFFINE = ("relax.add", "relax.divide", "relax.multiply", "relax.subtract")
# Operands with a fixed role. A role of `_HINTS` counts only for what is known to be a weight.
_ROLES: dict[str, dict[int, str]] = {
    "relax.nn.batch_norm": {1: "scale", 2: "bias", 3: "mean", 4: "variance"},
    "relax.nn.group_norm": {1: "scale", 2: "bias"},
    "relax.nn.instance_norm": {1: "scale", 2: "bias"},
    "relax.nn.layer_norm": {1: "scale", 2: "bias"},
    "relax.nn.rms_norm": {1: "scale"},
    "relax.nn.prelu": {1: "scale"},
}
_HINTS: dict[str, str] = {
    "relax.add": "bias",
    "relax.subtract": "bias",
    "relax.multiply": "scale",
    "relax.divide": "scale",
    "relax.rsqrt": "variance",
    "relax.sqrt": "variance",
}


@dataclass(frozen=True)
class InputSpec:
    """One parameter of ``main``.

    Attributes
    ----------
    name : str
        As the model has it.
    shape : tuple of int
        Static.
    dtype : str
        Relax dtype.
    role : str
        ``data`` or, for weights, ``weight``, ``bias``, ``scale``, ``mean`` or ``variance``.
    low, high : int
        Valid range [low, high) of an integer or bool parameter; 0, 0 for floats.
    fan_in : int
        Terms that a sum over this weight has; 0 where the role is not ``weight``.
    gain : float
        Factor beside ``1 / sqrt(fan_in)`` that keeps activations from vanishing.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str
    low: int = 0
    high: int = 0
    fan_in: int = 0
    gain: float = 1.0


Roots = dict[relax.Var, tuple[int, ...]]
"""For values: indices of the parameters that they are views, or weighted sums, of."""


@dataclass(frozen=True)
class _Use:
    """What one consumer says of a value: a role, a gain (0: none), or the range of indices."""

    role: str = ""
    fan_in: int = 0
    gain: float = 0.0
    high: int = 0
    firm: bool = True


def input_specs(mod: ir.IRModule, name: str = "main") -> list[InputSpec]:
    """Describe the parameters of a function so that sensible values can be drawn for them.

    Parameters
    ----------
    mod : IRModule
        At the global or annotated level.
    name : str
        The function.

    Returns
    -------
    list of InputSpec
        One for each parameter, in order. Without the attribute ``num_input`` a parameter is a
        weight when a norm, a convolution, a lookup or the right side of a matmul consumes it.

    Raises
    ------
    ModelError
        DIST0340 when there is no such function, or a parameter is no tensor of static shape.
    """
    names = {gv.name_hint: fn for gv, fn in mod.functions.items()}
    fn = names.get(name)
    if not isinstance(fn, relax.Function):
        raise ModelError(
            "DIST0340",
            f'the module has no Relax function "{name}"',
            place="module",
            remedy="Name the function main.",
        )
    uses = _Walker(mod).uses_of(fn)
    data_count = num_input(fn)
    specs = []
    for index, (param, param_name) in enumerate(zip(fn.params, param_names(fn), strict=True)):
        is_data = None if data_count is None else index < data_count
        specs.append(_spec(param_name, param, uses[index], is_data))
    return specs


def _spec(name: str, param: relax.Var, uses: Sequence[_Use], is_data: bool | None) -> InputSpec:
    tensor, shape = tensor_type(param.ty), known_shape(param.ty)
    if tensor is None or shape is None:
        raise ModelError(
            "DIST0340",
            f"{param.ty} is no tensor of static shape",
            place=f"main/{name}",
            remedy="Bind its symbolic dims.",
        )
    dtype = _dtype(tensor)
    if not _is_float(dtype):
        bounds = [use.high for use in uses if use.high]
        high = min(bounds, default=2)
        return InputSpec(name, shape, dtype, "data" if is_data is not False else "weight", 0, high)
    roles = [use for use in uses if use.role and (use.firm or is_data is False)]
    if is_data or (is_data is None and not roles):
        return InputSpec(name, shape, dtype, "data")
    role = min((use.role for use in roles), key=ROLES.index, default="weight")
    if role != "weight":
        return InputSpec(name, shape, dtype, role)
    heavy = [use for use in roles if use.role == "weight"]
    widest = max(heavy, key=lambda use: use.fan_in, default=_Use(fan_in=shape[-1] if shape else 1))
    gain = min((use.gain for use in uses if use.gain), default=1.0)
    return InputSpec(name, shape, dtype, role, 0, 0, max(widest.fan_in, 1), gain)


class _Walker:
    """Collects the uses of parameters, private functions once each."""

    def __init__(self, mod: ir.IRModule) -> None:
        self.functions = {gv.name_hint: fn for gv, fn in mod.functions.items()}
        self.done: dict[str, list[list[_Use]]] = {}
        self.open: list[str] = []

    def uses_of(self, fn: relax.Function) -> list[list[_Use]]:
        """Return the uses of each parameter of a function."""
        uses: list[list[_Use]] = [[] for _ in fn.params]
        roots: Roots = {p: (i,) for i, p in enumerate(fn.params)}
        self._sequence(fn.body, roots, {}, uses)
        return uses

    def _sequence(self, body: Any, roots: Roots, sums: Roots, uses: list[list[_Use]]) -> None:
        """Walk bindings. ``sums``: the weights of which a value is the weighted sum."""
        for block in getattr(body, "blocks", []):
            for binding in block.bindings:
                value = getattr(binding, "value", None)
                if isinstance(value, relax.If):
                    self._sequence(value.true_branch, roots, sums, uses)
                    self._sequence(value.false_branch, roots, sums, uses)
                    continue
                found = self._same_values(value, roots)
                if found:
                    roots[binding.var] = found
                weighted = self._weights_of_sum(value, roots, sums)
                if weighted:
                    sums[binding.var] = weighted
                if isinstance(value, ir.Call):
                    self._call(value, roots, uses)
                    _note_gains(value, sums, uses)

    def _weights_of_sum(self, value: Any, roots: Roots, sums: Roots) -> tuple[int, ...]:
        """Return the weights of a matmul or convolution that a value is, up to scale and shift."""
        if isinstance(value, relax.Var):
            return sums.get(value, ())
        if isinstance(value, relax.TupleGetItem):
            return self._weights_of_sum(value.tuple_value, roots, sums)
        if not isinstance(value, ir.Call) or not isinstance(value.op, ir.Op):
            return ()
        name = value.op.name
        if name == "relax.matmul" or name.startswith("relax.nn.conv"):
            return _known(value.args[1], roots)
        if name in _VIEWS or name == "relax.nn.batch_norm":
            return _known(value.args[0], sums)
        if name in _AFFINE:
            first, second = value.args
            if _numel(second) < _numel(first):
                return _known(first, sums)
            return _known(second, sums) if _numel(first) < _numel(second) else ()
        return ()

    def _same_values(self, value: Any, roots: Roots) -> tuple[int, ...]:
        """Return the parameters whose values, reordered, repeated or cast, a binding holds."""
        if isinstance(value, relax.Var):
            return roots.get(value, ())
        if isinstance(value, relax.TupleGetItem):
            return self._same_values(value.tuple_value, roots)
        if isinstance(value, ir.Call) and isinstance(value.op, ir.Op):
            operands = [value.args[i] for i in _VIEWS.get(value.op.name, ())]
            found = {r for x in operands if isinstance(x, relax.Var) for r in roots.get(x, ())}
            return tuple(sorted(found))
        return ()

    def _call(self, call: Any, roots: Roots, uses: list[list[_Use]]) -> None:
        if isinstance(call.op, ir.GlobalVar):
            callee = self._private(call.op.name_hint)
            told = callee if callee is not None else [[] for _ in call.args]
        else:
            told = [_uses_in(call, index) for index in range(len(call.args))]
        for arg, found in zip(call.args, told, strict=False):
            leaves = arg.fields if isinstance(arg, relax.Tuple) else [arg]
            for position, leaf in enumerate(leaves):
                for root in roots.get(leaf, ()) if isinstance(leaf, relax.Var) else ():
                    uses[root].extend(_of_leaf(call, position, found))

    def _private(self, name: str) -> list[list[_Use]] | None:
        """Return the uses of a callee's parameters; None for a kernel or a recursive call."""
        fn = self.functions.get(name)
        if not isinstance(fn, relax.Function) or name in self.open:
            return None
        if name not in self.done:
            self.open.append(name)
            self.done[name] = self.uses_of(fn)
            self.open.pop()
        return self.done[name]


def _known(expr: Any, facts: Roots) -> tuple[int, ...]:
    return facts.get(expr, ()) if isinstance(expr, relax.Var) else ()


def _numel(expr: Any) -> int:
    return math.prod(_shape(expr))


def _note_gains(call: Any, sums: Roots, uses: list[list[_Use]]) -> None:
    """Note the gains of weights whose sums are rectified, or added to a value of their size."""
    if not isinstance(call.op, ir.Op):
        return
    if call.op.name in _RECTIFIERS:
        for root in _known(call.args[0], sums):
            uses[root].append(_Use(gain=_RELU_GAIN))
    if call.op.name == "relax.add" and _shape(call.args[0]) == _shape(call.args[1]):
        weighted = [_known(arg, sums) for arg in call.args]
        gain = _JOINT_GAIN if all(weighted) else _RESIDUAL_GAIN
        for root in [*weighted[0], *weighted[1]]:
            uses[root].append(_Use(gain=gain))


def _of_leaf(call: Any, position: int, found: Iterable[_Use]) -> list[_Use]:
    """Give the uses of a tuple argument's leaf: index_tensor bounds each index by its own dim."""
    if isinstance(call.op, ir.Op) and call.op.name == "relax.index_tensor":
        shape = _shape(call.args[0])
        return [replace(use, high=shape[position]) if use.high else use for use in found]
    return list(found)


def _uses_in(call: Any, index: int) -> list[_Use]:
    """Return what an op's call says of its operand ``index``."""
    name = call.op.name if isinstance(call.op, ir.Op) else ""
    bound = _index_bound(name, call, index)
    if bound:
        return [_Use(high=bound)]
    if name in _ROLES:
        role = _ROLES[name].get(index)
        return [_Use(role)] if role else []
    if name in _HINTS:
        return [_Use(_HINTS[name], firm=False)]
    shape = _shape(call.args[index])
    if name == "relax.take" and index == 0 and shape:
        return [_Use("weight", fan_in=shape[-1])]
    if name == "relax.matmul" and shape:
        terms = shape[-1] if index == 0 or len(shape) == 1 else shape[-2]
        return [_Use("weight", fan_in=terms, firm=index == 1)]
    if name.startswith("relax.nn.conv") and index == 1 and shape:
        outputs = shape[str(call.attrs.kernel_layout).index("O")]
        groups = int(call.attrs.groups) if name.endswith("_transpose") else 1
        terms = math.prod(shape) // max(outputs, 1) // groups
        return [_Use("weight", fan_in=terms)]
    return []


def _index_bound(name: str, call: Any, index: int) -> int:
    """Rows that the indices in operand ``index`` may name; 0 when it holds no indices."""
    data = _shape(call.args[0]) if call.args else ()
    if name in ("relax.take", "relax.gather_elements", "relax.scatter_elements") and index == 1:
        axis = call.attrs.axis
        return math.prod(data) if axis is None else data[int(axis)]
    if name in ("relax.index_tensor", "relax.gather_nd", "relax.scatter_nd") and index == 1:
        return min(data, default=0)
    if name == "relax.one_hot" and index == 0:
        return int(call.attrs.depth)
    if name in ("relax.nn.nll_loss", "relax.grad.nll_loss_backward"):
        offset = int(name == "relax.grad.nll_loss_backward")
        classes = _shape(call.args[offset])
        if index == offset + 1 and classes:
            return classes[1] if len(classes) > 1 else classes[0]
    return 0


def _shape(expr: Any) -> tuple[int, ...]:
    """Return the static shape of an operand, () when unknown."""
    shape = known_shape(expr.ty) if getattr(expr, "ty", None) is not None else None
    return shape or ()


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype.dtype if hasattr(tensor.dtype, "dtype") else tensor.dtype)


def _is_float(dtype: str) -> bool:
    return "float" in dtype
