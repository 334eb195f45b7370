#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Training steps in half precision with float32 masters, against torch.

Usage: scripts/peers/compare_torch_half.py [--only WORD] [--dtype bfloat16] [--steps N] [--seed N]
Needs the extra "torch". The models of compare_torch.py, their weights, activations and gradients in
bfloat16 or float16, their loss and their optimizer's work in float32: on our side
`td.train_step(..., master=True)`, with a loss scale for float16; in torch the model in half
precision, whose weights are rounded from float32 masters after each step. A row gives the largest
relative difference of a loss; the largest difference of a master, in Frobenius norm relative to
how far torch moved it, in units of the format's epsilon; the same of torch's float32 step; and of
a step of ours whose learning rate is wrong by half. Exits 1 where a step is further from torch's
than the bound and than twice torch's float32 step (which is where a rectifier or a pool turns),
or a wrong one is not.
"""

from __future__ import annotations

import argparse
import copy
import sys
import warnings
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import torch
from compare_torch import MODELS, OPTIMIZERS, Case, Experts, loss_of
from compare_torch import by_torch as single
from torch import nn
from tvm import ir, relax
from tvm.relax.frontend.torch import from_exported_program

import tvm_distir as td
from tvm_distir.core.ir.attributes.readers import param_names
from tvm_distir.core.ir.types import flat_types, tensor_type
from tvm_distir.core.rewriting.scopes import all_bindings
from tvm_distir.execution.runtime.engines.reference import Reference

BOUND = 32
"""Most that masters may be apart of the way that they went, in epsilons of the format."""

SCALE = 128.0
"""Of the loss, in float16."""

WRONG = 1.5
"""What a planted error multiplies the learning rate with."""

WIDE = (
    *(f"relax.nn.{name}" for name in ("layer_norm", "group_norm", "batch_norm", "softmax")),
    "relax.einsum",
    "relax.topk",
)
"""Ops that work in float32 inside, in torch; TVM has no such kernels for bfloat16."""


@dataclass(frozen=True)
class Half:
    """A format: by torch, by NumPy, and its epsilon."""

    torch: Any
    numpy: Any
    epsilon: float
    scale: float


FORMATS = {
    "bfloat16": Half(torch.bfloat16, ml_dtypes.bfloat16, 2.0**-7, 1.0),
    "float16": Half(torch.float16, np.float16, 2.0**-10, SCALE),
}


def halved(mod: Any, dtype: str) -> Any:
    """A float32 model with one function in half precision: each op's result is rounded to it.

    TVM's importer gives products of half precision in float32 and then refuses to add a bias, so
    models are imported in float32.
    """
    fn, builder = mod["main"], relax.BlockBuilder()
    env: dict[Any, Any] = {}
    for param in fn.params:
        kind = dtype if str(param.ty.dtype) == "float32" else str(param.ty.dtype)
        env[param] = relax.Var(param.name, relax.TensorType(param.ty.shape, kind))

    def value(expr: Any) -> Any:
        if isinstance(expr, ir.Var):
            return env[expr]
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([value(each) for each in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            return relax.TupleGetItem(value(expr.tuple_value), expr.index)
        if not isinstance(expr, ir.Call):
            return expr
        args = [value(arg) for arg in expr.args]
        leaves = [ty for arg in args for ty in flat_types(arg.ty)]
        if not any(tensor_type(ty) and str(ty.dtype) == dtype for ty in leaves):
            return ir.Call(expr.op, args, expr.attrs)
        kind = "float32" if str(expr.op.name) in WIDE else dtype
        created = builder.emit(ir.Call(expr.op, [cast(arg, kind) for arg in args], expr.attrs))
        return cast(created, dtype)

    def cast(expr: Any, kind: str) -> Any:
        """Floats, and those in a tuple, in another type."""
        if isinstance(expr.ty, relax.TupleType) and all(map(tensor_type, flat_types(expr.ty))):
            fields = range(len(expr.ty.fields))
            return relax.Tuple(
                [cast(builder.emit(relax.TupleGetItem(expr, i)), kind) for i in fields]
            )
        tensor = tensor_type(expr.ty)
        if tensor is None or str(tensor.dtype) in (kind, "int64", "int32", "bool"):
            return expr
        return builder.emit(relax.op.astype(expr, kind))

    with builder.function("main", list(env.values())):
        with builder.dataflow():
            for binding in all_bindings(fn.body):
                env[binding.var] = builder.emit(value(binding.value), binding.var.name)
            out = builder.emit_output(value(fn.body.body))
        builder.emit_func_output(out)
    main = builder.get()["main"].with_attr("num_input", 1)
    return ir.IRModule({"main": main})


def start(mod: Any, stored: Any, half: Half) -> dict[str, Any]:
    """Weights by name, rounded; masters, not rounded, by the name of their weight and `.master`."""
    names = [str(p.name) for p in mod["main"].params][1:]
    matches = {}
    for name, value in zip(names, stored["main"], strict=True):
        matches[name] = value.numpy().astype(half.numpy)
        matches[f"{name}.master"] = value.numpy()
    return matches


def by_tvm(
    case: Case, dtype: str, model: nn.Module, batches: list[Any], factor: float
) -> tuple[list[float], dict[str, Any]]:
    """Train with masters; return the losses and the last masters by torch's names."""
    half = FORMATS[dtype]
    program = torch.export.export(model.eval(), (batches[0][0],))
    mod = from_exported_program(program, keep_params_as_input=True)
    mod, stored = relax.frontend.detach_params(mod)
    state = start(mod, stored, half)
    options = dict(OPTIMIZERS[case.optimizer][0])
    options["rate"] *= factor
    loss = "mse" if batches[0][1].is_floating_point() else "cross_entropy"
    step = td.train_step(
        halved(mod, dtype),
        loss,
        case.optimizer,
        clip=case.clip,
        master=True,
        loss_scale=half.scale,
        **options,
    )
    fn = step["main"]
    names = param_names(fn)
    for name, param in zip(names[2:], fn.params[2:], strict=True):
        shape = [int(n) for n in param.ty.shape]
        state.setdefault(name, np.zeros(shape, str(param.ty.dtype)))
    updated = [n for n in names if n in fn.attrs["dist.training"]["updated"]]
    reference, losses = Reference(step), []
    for inputs, targets in batches:
        floats = [
            x.to(half.torch).float().numpy().astype(half.numpy)
            if x.is_floating_point()
            else x.int().numpy()
            for x in (inputs, targets)
        ]
        if not inputs.is_floating_point():
            floats[0] = inputs.numpy()
        result = reference.run([*floats, *(state[n] for n in names[2:])])
        losses.append(float(result[0]))
        state.update(zip(updated, result[1:], strict=True))
    order = [str(p.name) for p in mod["main"].params][1:]
    torch_names = list(program.graph_signature.parameters)
    return losses, {n: state[f"{o}.master"] for n, o in zip(torch_names, order, strict=True)}


def by_torch(
    case: Case, dtype: str, model: nn.Module, batches: list[Any]
) -> tuple[list[float], dict[str, Any]]:
    """Train with masters; return the losses and the last masters."""
    half = FORMATS[dtype]
    masters = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
    optimizer = OPTIMIZERS[case.optimizer][1](list(masters.values()))
    work = copy.deepcopy(model).to(half.torch)
    work.train()
    losses = []
    for inputs, targets in batches:
        inputs, targets = (
            x.to(half.torch) if x.is_floating_point() else x for x in (inputs, targets)
        )
        wide = targets.float() if targets.is_floating_point() else targets
        work.zero_grad()
        loss = loss_of(work(inputs).float(), wide)
        (loss * half.scale).backward()
        for name, weight in work.named_parameters():
            masters[name].grad = weight.grad.float() / half.scale
        if case.clip:
            nn.utils.clip_grad_norm_(list(masters.values()), case.clip)
        optimizer.step()
        with torch.no_grad():
            for name, weight in work.named_parameters():
                weight.copy_(masters[name])
        losses.append(float(loss.detach()))
    return losses, {n: v.detach().numpy() for n, v in masters.items()}


@dataclass(frozen=True)
class Found:
    """What a case gave: differences of losses, relative, and of masters, in epsilons.

    ``own``: of torch's from those that torch makes in float32. ``wrong``: with a wrong rate.
    """

    losses: float
    masters: float
    own: float
    wrong: float

    @property
    def passes(self) -> bool:
        """Whether masters are near enough, and those of the wrong rate are not."""
        return self.masters < max(BOUND, 2 * self.own) < self.wrong


def compared(case: Case, dtype: str, steps: int, seed: int) -> Found:
    """See the head of the file."""
    torch.manual_seed(seed)
    model = MODELS[case.model][0]()
    for part in model.modules():
        if isinstance(part, Experts):
            part.chosen = 4  # rounding would choose others of the best two
    batches = list(case.batches(steps))
    before = {n: v.detach().numpy().copy() for n, v in model.named_parameters()}
    losses, after = by_torch(case, dtype, model, batches)

    def apart(matches: dict[str, Any]) -> float:
        """The largest difference of a master, of the way that torch moved it."""
        norm = np.linalg.norm
        parts = [norm(matches[n] - after[n]) / norm(after[n] - before[n]) for n in after]
        return float(max(parts)) / FORMATS[dtype].epsilon

    ours, masters = by_tvm(case, dtype, copy.deepcopy(model), batches, 1.0)
    _, wrong = by_tvm(case, dtype, copy.deepcopy(model), batches, WRONG)
    single(case, model, batches)
    local = {n: v.detach().numpy() for n, v in model.named_parameters()}
    loss = max(abs(a - b) / abs(b) for a, b in zip(ours, losses, strict=True))
    return Found(loss, apart(masters), apart(local), apart(wrong))


def main() -> int:
    """Print a row per case."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--only", default="", help="models whose name holds this")
    parser.add_argument("--dtype", choices=list(FORMATS), help="one of the formats; both else")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| model | dtype | optimizer | losses | masters, eps | torch, float32 | wrong rate |")
    print("|--|--|--|--:|--:|--:|--:|")
    failed = 0
    for model in MODELS:
        if options.only not in model:
            continue
        for dtype in [options.dtype] if options.dtype else FORMATS:
            for optimizer, clip in (("sgd", 0.0), ("adamw", 0.5)):
                case = Case(model, optimizer, clip)
                result = compared(case, dtype, options.steps, options.seed)
                print(
                    f"| {model} | {dtype} | {optimizer} | {result.losses:.1e} | "
                    f"{result.masters:.1f} | {result.own:.1f} | {result.wrong:.1f} |",
                    flush=True,
                )
                failed += not result.passes
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
