# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Export a program with the measured times of its kernels on this machine."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tvm
from tvm import ir, relax, tirx

from tvm_distir.core.ir import check_module, known_shape
from tvm_distir.core.rewriting import KernelCall, called_name
from tvm_distir.hardware import PICOSECONDS
from tvm_distir.performance import Program, export
from tvm_distir.support import CACHE, CacheFile, shortened
from tvm_distir.transforms import repair_kernels

from .compilation import not_compiled, order_loops
from .cores import one_thread
from .io_layout import np_dtype
from .kernel_scratch import ScratchCounter
from .launched import launched
from .targets import check_engine_runs, target_in_scope

_LEAST_S = 0.01
"""The least time for which a kernel is run to be timed."""
_REPEATS = 3
_CORE_BYTES, _SHARED_BYTES = 1 << 20, 64 << 20
"""The bytes that the caches of a core hold, and those of a processor, at most."""
_MOST_S = 86400.0
"""No kernel is run for longer than a day to be timed: a longer time in the cache is absurd."""


_KERNEL_CALLS = ("relax.call_tir", "relax.call_tir_inplace")


class KernelCost(NamedTuple):
    """Measured cost of a kernel.

    Attributes
    ----------
    time_s : float
    scratch_bytes : int
        What it allocates while it runs, besides its results.
    """

    time_s: float
    scratch_bytes: int


def measure(mod: ir.IRModule, *, fuse: bool = False, cached: bool = True) -> Program:
    """Export a level-5 module with the times and scratch memory of its kernels on this machine.

    Each distinct kernel is compiled and run on a core, timed by the thread's CPU time: the quickest
    of three. Both are kept on disk by kernel, target and processor. What is no kernel of TVM's
    (collectives, calls of external functions) has no time, and gets that of the system. The scratch
    memory of a kernel is that of the buffers in global memory that it allocates besides its
    results, after TVM has let them share memory (its pass ``StorageRewrite``).

    Parameters
    ----------
    mod : IRModule
        The module, at level 5, with shapes of fixed size.
    fuse : bool
        Whether kernels are fused, as in :func:`.launched.launched`; :func:`tvm_distir.run` does not
        fuse them.
    cached : bool
        Whether to read and keep times on disk, in :data:`CACHE`.

    Returns
    -------
    Program
        ``Op.measured_ps`` of its compute ops is the time, ``Op.scratch_bytes`` the memory.

    Raises
    ------
    EngineError
        DIST0606 where TVM cannot compile a kernel, DIST0609 where the target in scope is no CPU.
    SimulationError
        As :func:`tvm_distir.export`.

    Examples
    --------
    >>> mod = td.zoo.build("mlp", {"batch": 4, "layers": 1, "hidden": 8})
    >>> plan = td.Plan(mesh={"tp": 2}, rules={"x": td.P(None, "tp")})
    >>> dist = td.distribute(mod, plan)
    >>> program = td.measure(dist)
    >>> [op.measured_ps > 0 for op in program.functions["main"].ops if op.kind == "compute"]
    [True, True, True]
    """
    check_module(mod, "td.measure")
    check_engine_runs(str(target_in_scope()), "measure")
    kernels = launched(mod, fuse)
    program = export(kernels)
    with target_in_scope():
        costs = _costs(order_loops(kernels), cached)
    functions = {
        name: replace(
            fn,
            ops=tuple(
                op._replace(
                    measured_ps=max(1, round(costs[op.op].time_s * PICOSECONDS)),
                    scratch_bytes=costs[op.op].scratch_bytes,
                )
                if op.kind == "compute" and op.op in costs
                else op
                for op in fn.ops
            ),
        )
        for name, fn in program.functions.items()
    }
    return replace(program, functions=functions)


def _costs(kernels: ir.IRModule, cached: bool) -> dict[str, KernelCost]:
    """Return the cost of each PrimFunc that is called, by its name."""
    calls = _calls(kernels)
    file = CacheFile(CACHE / "kernels" / f"{_machine()}.json")
    known = (file.read(_decoded) if cached else None) or {}
    keys = {name: _key(kernels[name], call) for name, call in calls.items()}
    missing: dict[str, relax.Call] = {}
    for name, call in calls.items():
        if keys[name] not in known and keys[name] not in {keys[other] for other in missing}:
            missing[name] = call
    if missing:
        measured = {keys[name]: cost for name, cost in _run_all(kernels, missing).items()}
        known.update(measured)
        if cached:
            file.update(
                _decoded, lambda stored: json.dumps({**(stored or {}), **measured}).encode()
            )
    return {name: known[key] for name, key in keys.items()}


def _decoded(data: bytes) -> dict[str, KernelCost]:
    """Return the costs of a cache file.

    Raises
    ------
    ValueError
        Where it is no JSON object, or a cost is none that a kernel can have.
    """
    stored = json.loads(data)
    if not isinstance(stored, dict):
        raise ValueError("it is not a JSON object")
    for key, cost in stored.items():
        took_s, size = cost if isinstance(cost, list) and len(cost) == 2 else (cost, 0)
        if type(took_s) is not float or not 0.0 < took_s <= _MOST_S:
            raise ValueError(f"the time of {key} is {shortened(repr(took_s))}, not seconds")
        if type(cost) is not list or type(size) is not int or size < 0:
            raise ValueError(f"the cost of {key} is {shortened(repr(cost))}, not seconds and bytes")
    return {key: KernelCost(*cost) for key, cost in stored.items()}


def _calls(kernels: ir.IRModule) -> dict[str, relax.Call]:
    """Return a call of each PrimFunc whose operands are tensors of fixed size."""
    calls: dict[str, relax.Call] = {}

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Call) and called_name(expr) in _KERNEL_CALLS:
            name = str(expr.args[0].name_hint)
            tensors = [known_shape(arg.ty) is not None for arg in expr.args[1]]
            if name not in calls and len(expr.args) == 2 and all(tensors):
                calls[name] = expr

    for fn in kernels.functions.values():
        if isinstance(fn, relax.Function):
            relax.analysis.post_order_visit(fn.body, visit)
    return calls


def _run_all(kernels: ir.IRModule, calls: Mapping[str, relax.Call]) -> dict[str, KernelCost]:
    """Return the costs of kernels, compiled together and called as programs call them."""
    prims = {gv: fn for gv, fn in kernels.functions.items() if isinstance(fn, tirx.PrimFunc)}
    wrappers = {f"timed_{name}": _function(call, f"timed_{name}") for name, call in calls.items()}
    module = ir.IRModule({**prims, **{ir.GlobalVar(name): fn for name, fn in wrappers.items()}})
    target, outer = target_in_scope(), tvm.transform.PassContext.current()
    sizes = {
        name: KernelCall(kernels[name], call, call.args[1]).sizes(f"measure/{name}")
        for name, call in calls.items()
    }
    scratch = ScratchCounter(sizes)
    context = tvm.transform.PassContext(
        outer.opt_level,
        required_pass=outer.required_pass,
        disabled_pass=outer.disabled_pass,
        instruments=[*outer.instruments, scratch],
        config=outer.config,
    )
    try:
        with context:
            library = tvm.compile(repair_kernels(module), target).jit()
    except Exception as err:
        raise not_compiled(err, "measure") from err
    with one_thread():
        machine = relax.VirtualMachine(library, tvm.cpu())
        return {
            name: KernelCost(
                _timed(machine[f"timed_{name}"], _operands(call)), scratch.bytes.get(name, 0)
            )
            for name, call in calls.items()
        }


def _function(call: relax.Call, name: str) -> relax.Function:
    params = [relax.Var(f"operand{n}", arg.ty) for n, arg in enumerate(call.args[1])]
    builder = relax.BlockBuilder()
    with builder.function(name, params):
        call_on_params = relax.Call(
            call.op, [call.args[0], relax.Tuple(params)], call.attrs, call.ty_args
        )
        builder.emit_func_output(builder.emit(call_on_params))
    return builder.finalize()[name]


def _operands(call: relax.Call) -> list[list[tvm.runtime.Tensor]]:
    """Return operands of calls in turn, so that large ones are not in the cache of a core."""
    first = _arguments(call)
    size = sum(math.prod(t.shape) * np_dtype(str(t.dtype)).itemsize for t in first)
    count = max(1, _SHARED_BYTES // size) if size > _CORE_BYTES else 1
    return [first, *(_arguments(call) for _ in range(count - 1))]


def _arguments(call: relax.Call) -> list[tvm.runtime.Tensor]:
    """Draw normal floats, as trained models have them, and integers 0, which are in range."""
    rng, out = np.random.default_rng(0), []
    for arg in call.args[1]:
        shape, dtype = known_shape(arg.ty), np_dtype(str(arg.ty.dtype))
        sizes = tuple(shape or ())
        floats = "float" in dtype.name
        value = rng.standard_normal(sizes, "float32") if floats else np.zeros(sizes)
        out.append(tvm.runtime.tensor(value.astype(dtype)))
    return out


def _timed(function: Callable[..., object], operands: list[list[tvm.runtime.Tensor]]) -> float:
    """Return the seconds of a call, the quickest of some runs: of this thread's time."""
    function(*operands[0])
    turns = itertools.cycle(operands)
    count, best_s = 1, float("inf")
    for _ in range(_REPEATS):
        while True:
            begin_s = time.thread_time()
            for arguments in itertools.islice(turns, count):
                function(*arguments)
            took_s = time.thread_time() - begin_s
            if took_s >= _LEAST_S:
                break
            count *= 2 if took_s > _LEAST_S / 4 else 8
        best_s = min(best_s, took_s / count)
    return best_s


def _key(fn: tirx.PrimFunc, call: relax.Call) -> str:
    """Return the digest of a kernel, its name apart, and of the operands' types."""
    types = [str(arg.ty) for arg in call.args[1]]
    text = "\n".join([fn.without_attr("global_symbol").script(show_meta=True), *types])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _machine() -> str:
    """Return the digest of the machine's properties that times depend on."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text(encoding="utf-8", errors="replace").splitlines()
        model = next((line for line in lines if line.startswith("model name")), model)
    parts = (model, str(target_in_scope()), tvm.__version__, KernelCost._fields, _SHARED_BYTES)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
