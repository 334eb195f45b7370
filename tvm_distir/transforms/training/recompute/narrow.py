# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Save the values that fused kernels of the backward pass read.

Such kernels compute an activation that gates another value, and a cast to more bytes, again from
their operand (:func:`saved_operands`). The policy ``megatron`` saves all values that Megatron-LM's
kernels save (:func:`keeping_narrow`).

Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", section 4,
``s b h (34 + 5 a s / h)`` bytes per layer at half precision:

- a dropout's mask, a byte per element, which the backward pass reads instead of generating it
again;
- of a value that is cast to more bytes, the value before the cast;
- of a softmax whose result is cast to half precision, that cast. Its gradient uses the rounded
  weights, as half-precision kernels of softmax do. All other results have the same bits;
- of an activation that gates another value, its operand (kernels of gated activations).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tvm import ir, relax
from tvm.relax import Binding, Var

from tvm_distir.core.rewriting import BlockWriter, called_name, op_name, substitute, variables
from tvm_distir.transforms.training.autodiff.saved_values import kept_and_again, type_bytes

_CAST = "relax.astype"
_ACTIVATIONS = frozenset(("relax.nn.silu", "relax.nn.gelu", "relax.nn.gelu_tanh"))
MaskKernels = Callable[[Any, Any], tuple[Any, Any] | None]
"""A function from a kernel that draws a mask, and the type of its result, to those that store and
read it."""


class NarrowPasses(NamedTuple):
    """Forward and backward pass of a function, written for the policy ``megatron``.

    Attributes
    ----------
    before, after : list of Binding
        The forward and the backward pass.
    kept : list of Var
        The values of the forward pass that are saved.
    recomputed : list of Binding
        The bindings that the backward pass recomputes, in order.
    read : list of Var
        The values of the forward pass that the two read.
    """

    before: list[Binding]
    after: list[Binding]
    kept: list[Var]
    recomputed: list[Binding]
    read: list[Var]


def keeping_narrow(
    before: Sequence[Any],
    after: Sequence[Any],
    read: Sequence[Any],
    params: Sequence[Var],
    kernels: MaskKernels,
) -> NarrowPasses:
    """Write a function's passes so that masks and the narrower side of casts are saved.

    Parameters
    ----------
    before, after : sequence of Binding
        The forward and the backward pass.
    read : sequence of Var
        The values that the backward pass, and its results, read.
    params : sequence of Var
    kernels : callable
    """
    returned = set(read) - {v for b in after for v in variables(b.value)}
    forward, backward = _with_masks(before, after, kernels)
    backward = _with_half_weights(forward, backward)
    of_forward = {b.var: b.value for b in forward}
    needed = {v: None for b in backward for v in variables(b.value)}
    needed |= dict.fromkeys(v for v in read if v in returned)
    needed = {v: None for v in needed if v in of_forward or v in set(params)}
    operands = saved_operands(forward, backward, [*needed], {*_ACTIVATIONS, _CAST})
    saved, recomputed = kept_and_again(forward, [*needed], params, operands)
    return NarrowPasses(forward, backward, saved, recomputed, [*needed])


def saved_operands(
    before: Sequence[Binding], after: Sequence[Binding], read: Sequence[Var], ops: Collection[str]
) -> dict[Any, Any]:
    """Return the values that kernels of the backward pass compute again, with what they read.

    Parameters
    ----------
    before, after : sequence of Binding
        The forward and the backward pass.
    read : sequence of Var
        The values that the backward pass, and its results, read.
    ops : collection of str
        The ops that kernels compute again. Of activations these are values that the backward pass
        only multiplies by, and of casts those to more bytes.

    Returns
    -------
    dict of Var to Var
    """
    if not ops:
        return {}
    of_forward = {b.var: b.value for b in before}
    operands = _gates(read, of_forward, after, _ACTIVATIONS.intersection(ops))
    if _CAST in ops:
        operands |= {var: v for var in read for v in _narrower(of_forward.get(var), var)}
    return operands


def _with_masks(
    before: Sequence[Any], after: Sequence[Any], kernels: MaskKernels
) -> tuple[list[Any], list[Any]]:
    """Return both passes with the masks of dropouts as values of the forward pass."""
    forward, backward = (BlockWriter(relax.BlockBuilder(), True) for _ in range(2))
    masks: dict[tuple[Any, ...], tuple[Any, Any]] = {}
    for binding in before:
        call, ty = binding.value, binding.var.ty
        kernel_pair = kernels(call.args[0], ty) if _dropout_operands(call) else None
        if kernel_pair is None:
            forward.bindings.append(binding)
            continue
        mask_kernel, masked = kernel_pair
        mask_ty = relax.TensorType(ty.shape, "bool")
        name = str(binding.var.name)
        both = forward.emit(
            relax.call_tir(mask_kernel, call.args[1], [ty, mask_ty]), f"{name}_both"
        )
        forward.bind(binding.var, forward.builder.normalize(relax.TupleGetItem(both, 0)))
        mask = forward.emit(relax.TupleGetItem(both, 1), f"{name}_mask")
        masks[_dropout_operands(call)] = mask, masked
    for binding in after:
        mask, masked = masks.get(_dropout_operands(binding.value), (None, None))
        if mask is None:
            backward.bindings.append(binding)
            continue
        operands = relax.Tuple([binding.value.args[1].fields[0], mask])
        backward.bind(
            binding.var,
            backward.builder.normalize(relax.call_tir(masked, operands, binding.var.ty)),
        )
    return forward.bindings, backward.bindings


def _dropout_operands(call: Any) -> tuple[Any, ...]:
    """Return the handle of a dropout kernel and its operands: state, stream, offsets."""
    if type(call) is not ir.Call or called_name(call) != "relax.call_tir":
        return ()
    operands = call.args[1].fields if isinstance(call.args[1], relax.Tuple) else ()
    return (call.args[0], *operands[1:])


def _with_half_weights(forward: Sequence[Any], backward: Sequence[Any]) -> list[Any]:
    """Return the backward pass over the rounded results of softmaxes, cast back."""
    writer, env = BlockWriter(relax.BlockBuilder(), True), dict[Any, Any]()
    read = {v for b in backward for v in variables(b.value)}
    softmaxes = {b.var for b in forward if op_name(b.value) == "nn.softmax"} & read
    for binding in forward:
        if op_name(binding.value) != "astype" or binding.value.args[0] not in softmaxes:
            continue
        source = binding.value.args[0]
        if type_bytes(binding.var.ty) < type_bytes(source.ty):
            wide = relax.op.astype(binding.var, str(source.ty.dtype))
            env[source] = writer.emit(wide, f"{source.name}_wide")
            softmaxes.discard(source)
    rest = (
        [relax.VarBinding(b.var, substitute(b.value, env)) for b in backward] if env else backward
    )
    return [*writer.bindings, *rest]


def _gates(
    needed: Iterable[Any],
    of_forward: Mapping[Any, Any],
    backward: Sequence[Any],
    ops: Collection[str],
) -> dict[Any, Any]:
    """Return the activations that the backward pass only multiplies by, with their operands."""
    gates = {
        var: of_forward[var].args[0]
        for var in needed
        if f"relax.{op_name(of_forward.get(var))}" in ops
    }
    for binding in backward:
        if op_name(binding.value) != "multiply":
            for var in variables(binding.value):
                gates.pop(var, None)
    return {var: operand for var, operand in gates.items() if isinstance(operand, ir.Var)}


def _narrower(value: Any, var: Var) -> list[Any]:
    """Return the value of fewer bytes that a variable is a cast of."""
    if op_name(value) != "astype" or not isinstance(value.args[0], ir.Var):
        return []
    source = value.args[0]
    return [source] if type_bytes(source.ty) < type_bytes(var.ty) else []
