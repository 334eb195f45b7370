# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Random level-1 modules: parameters, private functions that call each other, blocks, results."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import ir, relax

from tests.campaign import campaign_ops, campaign_ops_nn, campaign_ops_rare
from tests.campaign.campaign_writer import SIZE_WEIGHTS, SIZES, Callee, Item, Skip, Writer
from tvm_distir.execution.runtime.program.io_layout import np_dtype

OPS = campaign_ops.OPS + campaign_ops_nn.OPS + campaign_ops_rare.OPS
SHARES = np.array([share for share, _ in OPS]) / sum(share for share, _ in OPS)
DTYPES = ("float32", "float16", "bfloat16", "float64")
DTYPE_WEIGHTS = (0.47, 0.25, 0.25, 0.03)
NARROW = ("float16", "bfloat16")
BOUNDED = re.compile(r"_below(\d+)$")
"""An integer parameter's name ends with the bound of its values."""

FLOATS = {
    "mixed": (-2.0, -1.0, 0.0, 1.0, 2.0),
    "positive": (1.0, 2.0),
    "negative": (-2.0, -1.0),
    "nan": (-2.0, -1.0, 0.0, 1.0, 2.0, np.nan),
}
"""What floats are drawn from. Zeros in the padding are no extreme of mixed signs."""

SCALED = ("scaled", "scaled positive")
"""Floats of 16-bit programs that are no integers: normal, or uniform in (0.1, 1), times a size of
the seed from 1e-3 to 1e3 (to 10 in float16, whose sums end at 65504)."""


@dataclass(frozen=True)
class Sample:
    """A module, and per flattened result whether it must be equal bit for bit."""

    mod: ir.IRModule
    exact: tuple[bool, ...]


def inputs_of(mod: ir.IRModule, seed: int, values: str = "mixed") -> list[np.ndarray]:
    """Whole inputs of ``main``: floats from :data:`FLOATS` or as :data:`SCALED` says, integers
    below a named bound.
    """
    rng = np.random.default_rng(seed)
    magnitude = rng.uniform(-3, 3) if values in SCALED else 0.0
    matches = []
    for param in mod["main"].params:
        shape, dtype = [int(n) for n in param.ty.shape], str(param.ty.dtype)
        if dtype == "bool":
            matches.append(rng.integers(0, 2, shape).astype(bool))
        elif dtype.startswith("int"):
            bound = BOUNDED.search(str(param.name))
            matches.append(rng.integers(0, int(bound[1]) if bound else 1, shape).astype(dtype))
        elif values in SCALED:
            is_mixed = values == SCALED[0]
            drawn = rng.standard_normal(shape) if is_mixed else rng.uniform(0.1, 1, shape)
            scale = 10 ** min(magnitude, 1.0 if dtype == "float16" else 3.0)
            matches.append(np.asarray(scale * drawn, np_dtype(dtype)))
        else:
            places = rng.integers(0, len(FLOATS[values]), shape)
            matches.append(np.array(FLOATS[values])[places].astype(np_dtype(dtype)))
    return matches


def float_type(mod: ir.IRModule) -> str:
    """The float type of the parameters of ``main``, of which a module has one."""
    types = (str(param.ty.dtype) for param in mod["main"].params)
    return next((dtype for dtype in types if "float" in dtype), "float32")


def sample(seed: int) -> Sample:
    """The module of a seed."""
    rng = np.random.default_rng([seed, 1])
    builder = relax.BlockBuilder()
    dtype = str(rng.choice(DTYPES, p=DTYPE_WEIGHTS))
    params = _params(rng, dtype)
    callees: list[Callee] = []
    for number in range(int(rng.choice([0, 0, 1, 1, 2, 3]))):
        callees.append(_private(rng, builder, f"f{number}", params, dtype, callees))
    exact = _main(rng, builder, params, dtype, callees)
    return Sample(builder.get(), exact)


def _params(rng: np.random.Generator, dtype: str) -> list[relax.Var]:
    """Two to six tensors whose dims come from a few sizes, so that they fit together."""
    sizes = [int(n) for n in rng.choice(SIZES, size=3, p=SIZE_WEIGHTS)]
    matches = []
    for i in range(int(rng.integers(2, 7))):
        rank = int(rng.choice([0, 1, 2, 3, 4], p=[0.03, 0.17, 0.4, 0.28, 0.12]))
        shape = [int(rng.choice(sizes)) for _ in range(rank)]
        while int(np.prod(shape)) > 2000:
            shape.pop()
        if rng.random() < 0.12:
            bound = min(sizes)
            matches.append(relax.Var(f"p{i}_below{bound}", relax.TensorType(shape, "int32")))
        else:
            matches.append(relax.Var(f"p{i}", relax.TensorType(shape, dtype)))
    return matches


def _hold_params(writer: Writer, params: list[relax.Var], bound: float) -> None:
    for param in params:
        named = BOUNDED.search(str(param.name))
        most = int(named[1]) - 1 if named else bound
        writer.hold(param, max(most, 0.5), True)


def _steps(writer: Writer, count: int) -> None:
    """Emit ``count`` ops, skipping draws that do not fit."""
    for _ in range(count):
        for _attempt in range(8):
            try:
                OPS[int(writer.rng.choice(len(OPS), p=SHARES))][1](writer)
                break
            except Skip:
                continue


def _private(
    rng: np.random.Generator,
    builder: relax.BlockBuilder,
    name: str,
    outer: list[relax.Var],
    dtype: str,
    callees: list[Callee],
) -> Callee:
    """A private function of some of main's parameter shapes, perhaps as a tuple."""
    chosen = [p for p in outer if str(p.ty.dtype) == dtype][: int(rng.integers(1, 4))]
    shapes: list[Any] = [tuple(int(n) for n in p.ty.shape) for p in chosen] or [()]
    nested = len(shapes) > 1 and rng.random() < 0.15
    types = [relax.TensorType(list(s), dtype) for s in shapes]
    specs: list[Any] = [[*shapes]] if nested else shapes
    if nested:
        params = [relax.Var("pack", relax.TupleType(types))]
    else:
        params = [relax.Var(f"a{i}", ty) for i, ty in enumerate(types)]
    writer = Writer(rng, builder, dtype, callees)
    with builder.function(name, params, private=True):
        with builder.dataflow():
            if nested:
                params = [builder.emit(relax.TupleGetItem(params[0], i)) for i in range(len(types))]
            _hold_params(writer, params, campaign_ops_nn.CALL_BOUND)
            _steps(writer, int(rng.integers(1, 6)))
            result, spec = _result(rng, writer)
            out = builder.emit_output(result)
        gv = builder.emit_func_output(out)
    return Callee(gv, tuple(specs), spec)


def _result(rng: np.random.Generator, writer: Writer) -> tuple[Any, Any]:
    """One value, a pair, or a nested tuple; and bound and exactness of each tensor."""
    last = [i for i in writer.pool if i.dtype == writer.dtype][-4:] or writer.pool[-1:]

    def leaf(item: Item) -> tuple[Any, Any]:
        return item.var, (item.bound, item.exact)

    kind = rng.random()
    if kind < 0.45 or len(last) < 2:
        return leaf(last[-1])
    a, b = leaf(last[-1]), leaf(last[-2])
    if kind < 0.85:
        return relax.Tuple([a[0], b[0]]), [a[1], b[1]]
    c = leaf(last[0])
    return relax.Tuple([a[0], relax.Tuple([b[0], c[0]])]), [a[1], [b[1], c[1]]]


def _flat(spec: Any) -> list[bool]:
    if isinstance(spec, list):
        return [x for part in spec for x in _flat(part)]
    return [bool(spec[1])]


def _main(
    rng: np.random.Generator,
    builder: relax.BlockBuilder,
    params: list[relax.Var],
    dtype: str,
    callees: list[Callee],
) -> tuple[bool, ...]:
    """The public function: one to three blocks; what a later one uses leaves the earlier."""
    writer = Writer(rng, builder, dtype, callees)
    _hold_params(writer, params, 2)
    blocks = int(rng.choice([1, 1, 1, 2, 3]))
    with builder.function("main", params):
        for number in range(blocks):
            last = number == blocks - 1
            if not last and rng.random() < 0.4:
                writer.in_dataflow = False
                _steps(writer, int(rng.integers(1, 4)))
                writer.in_dataflow = True
                continue
            with builder.dataflow():
                before = len(writer.pool)
                _steps(writer, int(rng.integers(3, 9) if blocks == 1 else rng.integers(2, 5)))
                if last:
                    result, spec = _result(rng, writer)
                    out = builder.emit_output(result)
                else:
                    remaining = writer.pool[before:]
                    del writer.pool[before:]
                    for item in remaining[-3:]:
                        writer.hold(builder.emit_output(item.var), item.bound, item.exact)
        builder.emit_func_output(out)
    return tuple(_flat(spec))
