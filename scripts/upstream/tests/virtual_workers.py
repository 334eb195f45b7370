# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run a module in local view for all workers of a mesh, one after the other, without NCCL.

Kernels are compiled for the CPU; collectives are done with NumPy between them, as the ops of
``relax.ccl`` define them. Nothing but TVM and NumPy is needed.

A worker's operands lie between margins of one value: a kernel that reads past its shard reads
that value, always the same, and not what happens to lie there.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import ir, relax, tirx
from tvm.relax.distributed import DTensorType, transform

PASSES = (
    "PropagateSharding",
    "LowerGlobalViewToLocalView",
    "LegalizeRedistribute",
    "LowerDistIR",
)
MARGIN = 4096  # entries before and after each operand
BEYOND = 77  # their value
ALIGNMENT = 64  # bytes, as compiled kernels expect

Shards = list[np.ndarray]


def distribute(
    mod: ir.IRModule, passes: Sequence[str] = PASSES, legalize: bool = True
) -> tuple[ir.IRModule, Any]:
    """Run the passes of DistIR, looked up by name.

    Returns
    -------
    IRModule
        What the last pass gives.
    DTensorType or None
        The type of main's result before it became a plain tensor.
    """
    result = None
    if legalize:
        mod = relax.transform.LegalizeOps()(mod)
    for name in passes:
        mod = getattr(transform, name)()(mod)
        ret = mod["main"].ret_ty
        result = ret if isinstance(ret, DTensorType) else result
    return mod, result


def run(
    mod: ir.IRModule,
    inputs: Sequence[np.ndarray],
    passes: Sequence[str] = PASSES,
    legalize: bool = True,
) -> np.ndarray:
    """Distribute ``main``, run it on all workers, and put its one result together.

    Raises
    ------
    AssertionError
        Workers that should hold the same do not, or shards do not make up the whole.
    """
    local, result = distribute(mod, passes, legalize)
    if result is None:
        raise AssertionError("the result of main was never a DTensor")
    return execute(local, inputs, result)


def build(mod: ir.IRModule) -> Any:
    """Compile a module for one device."""
    return tvm.compile(mod, "llvm")


def reference(mod: ir.IRModule, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """Return what ``main`` gives on one device, annotations left out."""
    main = _WithoutAnnotations(mod).visit_expr(mod["main"])
    mod = ir.IRModule({**dict(mod.functions_items()), mod.get_global_var("main"): main})
    machine = relax.VirtualMachine(build(mod), tvm.cpu())
    return machine["main"](*[tvm.runtime.tensor(x) for x in inputs]).numpy()


def evaluate(make: Callable[..., Any], inputs: Sequence[np.ndarray]) -> np.ndarray:
    """Return what an expression of as many variables as inputs gives on one device."""
    types = [relax.TensorType(x.shape, str(x.dtype)) for x in inputs]
    params = [relax.Var(f"x{i}", ty) for i, ty in enumerate(types)]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(make(*params))
        builder.emit_func_output(result)
    return reference(builder.finalize(), inputs)


def execute(mod: ir.IRModule, inputs: Sequence[np.ndarray], result: Any) -> np.ndarray:
    """Run a module in local view and join its result.

    Parameters
    ----------
    mod : IRModule
        ``main`` takes DTensors, then each worker is given its shard, or plain tensors, then each
        is given the whole, as ``LowerDistIR`` wants it.
    inputs : sequence of ndarray
    result : DTensorType
        How the result lies.
    """
    shape = [int(n) for n in result.device_mesh.shape]
    expected = tuple(int(n) for n in result.tensor_ty.shape)
    return join(shards(mod, inputs, shape), str(result.placement), shape, expected)


def shards(mod: ir.IRModule, inputs: Sequence[np.ndarray], shape: Sequence[int]) -> Shards:
    """Return what each worker of a mesh of this shape gives."""
    workers = _Workers(mod, shape)
    main = mod["main"]
    values: dict[Any, Shards] = {}
    for param, whole in zip(main.params, inputs, strict=True):
        if isinstance(param.ty, DTensorType):
            values[param] = cut(whole, str(param.ty.placement), shape)
        else:
            values[param] = [whole] * workers.count
    for block in main.body.blocks:
        for binding in block.bindings:
            values[binding.var] = workers.compute(binding.value, values)
    return values[main.body.body]


def _labels(placement: str) -> list[int | None]:
    """Return the dim that each mesh axis cuts, None where it cuts none."""
    words = re.findall(r"S\[(\d+)\]|R", placement)
    return [int(word) if word else None for word in words]


def _part(whole: tuple[int, ...], placement: str, mesh: Sequence[int], worker: int) -> Any:
    """Return the slices of a worker's shard."""
    slices = [slice(0, n) for n in whole]
    for dim, n, at in zip(_labels(placement), mesh, np.unravel_index(worker, mesh), strict=True):
        if dim is not None:
            size = (slices[dim].stop - slices[dim].start) // n
            start = slices[dim].start + int(at) * size
            slices[dim] = slice(start, start + size)
    return tuple(slices)


def cut(whole: np.ndarray, placement: str, mesh: Sequence[int]) -> Shards:
    """Return each worker's shard of an array."""
    count = int(np.prod(mesh))
    return [whole[_part(whole.shape, placement, mesh, worker)] for worker in range(count)]


def join(parts: Shards, placement: str, mesh: Sequence[int], whole: tuple[int, ...]) -> np.ndarray:
    """Put the shards of all workers together; those that hold the same entries must agree."""
    out = np.empty(whole, parts[0].dtype)
    seen = np.zeros(whole, bool)
    for worker, shard in enumerate(parts):
        part = _part(whole, placement, mesh, worker)
        if out[part].shape != shard.shape:
            raise AssertionError(f"worker {worker} holds {shard.shape}, not {out[part].shape}")
        agree = np.where(seen[part], out[part] == shard, True)
        if not agree.all():
            raise AssertionError(f"worker {worker} holds other values than those before it")
        out[part], seen[part] = shard, True
    return out


@relax.expr_functor.mutator
class _WithoutAnnotations(relax.PyExprMutator):
    """Drops every annotation of a sharding."""

    def visit_call_(self, call: ir.Call) -> ir.Expr:
        call = super().visit_call_(call)
        is_op = isinstance(call.op, ir.Op)
        return call.args[0] if is_op and call.op.name == "relax.dist.annotate_sharding" else call


class _Workers:
    """What each kind of call gives on all workers."""

    def __init__(self, mod: ir.IRModule, mesh: Sequence[int]) -> None:
        self.mod, self.mesh, self.count = mod, tuple(mesh), int(np.prod(mesh))
        self.collectives: dict[str, Callable[[Shards, Any], Shards]] = {
            "relax.ccl.scatter_from_worker0": self._scatter,
            "relax.ccl.broadcast_from_worker0": lambda x, _: [x[0]] * self.count,
            "relax.ccl.allreduce": self._reduce,
            "relax.ccl.allgather": lambda x, _: [np.concatenate(x)] * self.count,
            "relax.dist.redistribute_replica_to_shard": self._keep_part,
        }

    def compute(self, value: Any, values: dict[Any, Shards]) -> Shards:
        """Return the result of one binding."""
        if not isinstance(value, ir.Call):
            return values[value]
        name = value.op.name
        if name in self.collectives:
            return self.collectives[name](values[value.args[0]], value.attrs)
        if name in ("relax.call_tir", "relax.dist.call_tir_local_view"):
            kernel = _compiled(self.mod[value.args[0]])
            operands = [values[x] for x in value.args[1].fields]
            return [kernel(*[x[worker] for x in operands]) for worker in range(self.count)]
        if name == "relax.call_pure_packed":
            packed, operand, _, axis, *dims = value.args
            kind = str(packed.global_symbol).removeprefix("relax.dist.")
            return self._along_axis(kind, values[operand], int(axis), [int(d) for d in dims])
        operands = [values[x] for x in value.args if x in values]
        return [self._op(value, [x[worker] for x in operands]) for worker in range(self.count)]

    def _op(self, call: Any, arrays: Shards) -> np.ndarray:
        """One op that is no kernel, on one worker's operands: as if the module were that call."""
        inputs = iter(
            [
                relax.Var(f"x{i}", relax.TensorType(x.shape, str(x.dtype)))
                for i, x in enumerate(arrays)
            ]
        )
        args = [next(inputs) if isinstance(x, ir.Var) else x for x in call.args]
        builder = relax.BlockBuilder()
        with builder.function("main", [x for x in args if isinstance(x, ir.Var)]):
            builder.emit_func_output(builder.emit(ir.Call(call.op, args, call.attrs)))
        machine = relax.VirtualMachine(tvm.compile(builder.get(), "llvm"), tvm.cpu())
        return machine["main"](*[tvm.runtime.tensor(x) for x in arrays]).numpy()

    def _along_axis(self, kind: str, x: Shards, axis: int, dims: list[int]) -> Shards:
        """A step of a redistribution among the workers that differ along one mesh axis."""
        out: Shards = []
        for worker in range(self.count):
            at = list(np.unravel_index(worker, self.mesh))
            position, group = int(at[axis]), []
            for at[axis] in range(self.mesh[axis]):
                group.append(x[int(np.ravel_multi_index(at, self.mesh))])
            if kind == "local_slice":
                out.append(np.split(x[worker], len(group), dims[0])[position])
            elif kind == "all_gather":
                out.append(np.concatenate(group, dims[0]))
            elif kind == "all_to_all":
                parts = [np.split(shard, len(group), dims[1])[position] for shard in group]
                out.append(np.concatenate(parts, dims[0]))
            else:
                raise NotImplementedError(kind)
        return out

    def _scatter(self, x: Shards, attrs: Any) -> Shards:
        return np.split(x[0], int(attrs.num_workers), int(attrs.axis))

    def _keep_part(self, x: Shards, attrs: Any) -> Shards:
        parts = [np.split(each, int(attrs.num_workers), int(attrs.axis)) for each in x]
        return [local[worker] for worker, local in enumerate(parts)]

    def _reduce(self, x: Shards, attrs: Any) -> Shards:
        kinds = {"sum": operator.add, "max": np.maximum, "min": np.minimum}
        return [functools.reduce(kinds[str(attrs.op_type)], x)] * self.count


def _between_margins(array: np.ndarray) -> Any:
    """Return a tensor of the array's values that lies between margins."""
    item = array.dtype.itemsize
    store = np.full(array.size + 2 * MARGIN + ALIGNMENT // item, BEYOND, array.dtype)
    start = MARGIN + -((store.ctypes.data + MARGIN * item) // item) % (ALIGNMENT // item)
    view = store[start : start + array.size].reshape(array.shape)
    view[...] = array
    return tvm.runtime.from_dlpack(view)


def _compiled(function: tirx.PrimFunc) -> Callable[..., np.ndarray]:
    """Return a kernel as a function of arrays; its last parameter is its result."""
    named = function.with_attr("global_symbol", "kernel").without_attr("private")
    library = tvm.compile(ir.IRModule({"kernel": named}), "llvm")
    out = function.params[-1].ty
    shape = [int(n) for n in out.shape]

    def call(*arrays: np.ndarray) -> np.ndarray:
        result = tvm.runtime.empty(shape, str(out.dtype))
        library["kernel"](*[_between_margins(x) for x in arrays], result)
        return result.numpy()

    return call
