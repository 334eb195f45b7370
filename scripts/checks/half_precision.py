#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Forty programs in bfloat16 and float16, against float64, beside their frameworks.

Usage: scripts/checks/half_precision.py [--only WORD] [--engine NAME] [--dispatch torch] [--seed N]
Needs the extras "torch", "jax" and "onnx", and onnxruntime. Ops and small models with sums of 64 to
8192 terms, of operands of 1e-3 to 1e3, on normal and on positive data; training steps of models
with their gradients. Each runs in its framework and here, and in float64 on the same rounded
operands. The error is the largest difference relative to the largest value. A row gives the case of
a program where ours is the largest multiple of the framework's; it passes where no error of ours is
above twice the framework's own. An error below that of a single rounding counts as this one.
Exits 1 unless all pass.
"""

from __future__ import annotations

import argparse
import copy
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import onnxruntime
import torch
from half_precision_programs import Operand, Program, programs
from onnx import TensorProto, helper
from torch.nn import functional as F

import tvm_distir as td
from tvm_distir.core.ir.attributes.readers import param_names

BOUND = 2.0
"""Most that an error of ours may be, as a multiple of the framework's."""

NUMPY = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}
ROUNDING = {"bfloat16": 2.0**-9, "float16": 2.0**-12}
"""Relative error of a single rounding to the nearest."""
SCALE = {"bfloat16": 1.0, "float16": 1024.0}
"""Of the loss of a training step."""


@dataclass(frozen=True)
class Case:
    """A program with a type and data, and the errors of ours and of the framework's results."""

    dtype: str
    data: str
    ours: float
    theirs: float

    @property
    def multiple(self) -> float:
        """Return our error as a multiple of the framework's."""
        return self.ours / max(self.theirs, ROUNDING[self.dtype])


def draw(operand: Operand, data: str, dtype: str, rng: np.random.Generator) -> Any:
    """Return an operand: whole numbers, or floats around zero or above it."""
    if operand.below:
        return rng.integers(0, operand.below, operand.shape)
    values = rng.standard_normal(operand.shape) if data == "normal" else rng.random(operand.shape)
    return (values * operand.scale).astype(NUMPY[dtype])


def as_torch(x: Any) -> torch.Tensor:
    """Return a tensor of the bits of an array."""
    if x.dtype == NUMPY["bfloat16"]:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def as_float64(x: Any) -> Any:
    """Return an array of a tensor's values; whole numbers stay."""
    if isinstance(x, torch.Tensor):
        return x.detach().double().numpy()
    x = np.asarray(x)
    return x if x.dtype.kind in "iu" else x.astype(np.float64)


def error(found: Sequence[Any], exact: Sequence[Any]) -> float:
    """Return the largest difference of a result, relative to its largest value."""
    return max(
        float(np.abs(as_float64(a) - b).max() / max(np.abs(b).max(), 1e-300))
        for a, b in zip(found, map(as_float64, exact), strict=True)
    )


class _Module(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(*tensors)


def run(mod: Any, arrays: Sequence[Any], options: argparse.Namespace) -> list[Any]:
    """Run a module on one device."""
    plan = {"schema_version": 1, "mesh": {"dp": 1}, "rules": []}
    program = td.distribute(mod, plan)
    return list(td.run(program, arrays, engine=options.engine, dispatch=options.dispatch))


def by_torch(program: Program, arrays: list[Any], options: Any) -> tuple[Any, Any, Any]:
    """Return results of ours, of PyTorch and of PyTorch in float64."""
    tensors = tuple(map(as_torch, arrays))
    wide = [x.double() if x.is_floating_point() else x for x in tensors]
    exported = torch.export.export(_Module(program.make), tensors)
    ours = run(td.from_exported_program(exported), arrays, options)
    return ours, [program.make(*tensors)], [program.make(*wide)]


def by_jax(program: Program, arrays: list[Any], options: Any) -> tuple[Any, Any, Any]:
    """Return results of ours, of JAX and of JAX in float64."""
    compiled = jax.jit(program.make)
    operands = [jnp.asarray(x) for x in arrays]
    mod = td.from_stablehlo(compiled.lower(*operands).as_text())
    ours, theirs = run(mod, arrays, options), [compiled(*operands)]
    with jax.enable_x64(True):
        exact = np.asarray(jax.jit(program.make)(*(jnp.asarray(as_float64(x)) for x in arrays)))
    return ours, theirs, [exact]


def onnx_model(program: Program, arrays: list[Any], result: Sequence[int]) -> Any:
    """Return a model of one node in float16."""
    op, attributes = program.make
    names = [f"operand{i}" for i in range(len(arrays))]
    half = TensorProto.FLOAT16
    values = [helper.make_tensor_value_info(n, half, x.shape) for n, x in zip(names, arrays)]
    node = helper.make_node(op, names, ["result"], **attributes)
    out = helper.make_tensor_value_info("result", half, result)
    graph = helper.make_graph([node], "graph", values, [out])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def by_onnx(program: Program, arrays: list[Any], options: Any) -> tuple[Any, Any, Any]:
    """Return results of ours, of ONNX Runtime and of PyTorch in float64."""
    wide = [torch.from_numpy(x.astype(np.float64)) for x in arrays]
    exact = {
        "MatMul": lambda: torch.matmul(*wide),
        "Conv": lambda: F.conv2d(*wide),
        "ReduceMean": lambda: wide[0].mean(1, keepdim=True),
        "LayerNormalization": lambda: F.layer_norm(wide[0], wide[1].shape, *wide[1:]),
    }[program.make[0]]()
    model = onnx_model(program, arrays, exact.shape)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    feeds = {value.name: x for value, x in zip(session.get_inputs(), arrays, strict=True)}
    return run(td.from_onnx(model), arrays, options), session.run(None, feeds), [exact]


def gradients(model: Any, arrays: list[Any], scale: float) -> list[Any]:
    """Return the gradients of a model's weights by PyTorch."""
    inputs, targets = map(as_torch, arrays)
    weight = next(model.parameters())
    inputs = inputs.to(weight.dtype) if inputs.is_floating_point() else inputs
    scores = model(inputs)
    wide = scores if scores.dtype == torch.float64 else scores.float()
    (F.cross_entropy(wide, targets) * scale).backward()
    return [as_float64(p.grad) / scale for p in model.parameters()]


def by_step(program: Program, arrays: list[Any], options: Any) -> tuple[Any, Any, Any]:
    """Return gradients of ours, of PyTorch and of PyTorch in float64.

    Ours are the steps from float32 masters of zeros, by gradient descent of rate 1.
    """
    torch.manual_seed(options.seed)
    dtype = next((str(x.dtype) for x in arrays if x.dtype in NUMPY.values()), options.dtype)
    half = program.make().to(getattr(torch, dtype))
    exported = torch.export.export(half.eval(), (as_torch(arrays[0]),))
    mod = td.from_exported_program(exported)
    step = td.train_step(
        mod, "cross_entropy", "sgd", master=True, loss_scale=SCALE[dtype], rate=1.0
    )
    fn = step["main"]
    weights = [p.detach().float().numpy().astype(NUMPY[dtype]) for p in half.parameters()]
    states = [
        np.zeros([int(n) for n in p.ty.shape], str(p.ty.dtype))
        for p in fn.params[len(arrays) + len(weights) :]
    ]
    typed = [arrays[0], arrays[1].astype(str(fn.params[1].ty.dtype))]
    _, *results = run(step, [*typed, *weights, *states], options)
    updated = [n for n in param_names(fn) if n in fn.attrs["dist.training"]["updated"]]
    ours = [-r for name, r in zip(updated, results, strict=True) if name.endswith(".master")]
    exact = gradients(copy.deepcopy(half).double(), arrays, 1.0)
    return ours, gradients(half, arrays, SCALE[dtype]), exact


RUNNERS = {"torch": by_torch, "jax": by_jax, "onnx": by_onnx, "step": by_step}


def cases(program: Program, options: argparse.Namespace) -> Iterator[Case]:
    """Run a program in its types on both kinds of data."""
    for dtype in program.dtypes:
        for data in ("normal", "positive"):
            rng = np.random.default_rng(options.seed)
            arrays = [draw(operand, data, dtype, rng) for operand in program.operands]
            options.dtype = dtype
            ours, theirs, exact = RUNNERS[program.framework](program, arrays, options)
            yield Case(dtype, data, error(ours, exact), error(theirs, exact))


def main() -> int:
    """Run the check; return the number of failures, at most 1."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="run programs with this word in their name")
    parser.add_argument("--engine", default="threads", help="engine of td.run")
    parser.add_argument("--dispatch", choices=["torch"], help="kernels of another library")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    chosen = [p for p in programs() if options.only in f"{p.framework}: {p.name}"]
    failed = 0
    head = ("program", "terms", "type", "data", "ours", "framework", "multiple")
    print(("{:32s}{:>6s} {:9s}{:9s}" + "{:>11s}" * 3).format(*head))
    for program in chosen:
        worst = max(cases(program, options), key=lambda case: case.multiple)
        good = worst.multiple <= BOUND  # false for NaN
        failed += not good
        name = f"{program.framework}: {program.name}"
        print(
            f"{name:32s}{program.terms:6d} {worst.dtype:9s}{worst.data:9s}{worst.ours:11.2e}"
            f"{worst.theirs:11.2e}{worst.multiple:11.2f}{'' if good else '  FAILS'}",
            flush=True,
        )
    print(f"{len(chosen) - failed} of {len(chosen)} programs pass")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
