# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Call distributed modules from JAX: the program of the devices as a primitive of JAX."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tvm import ir
from tvm.relax.distributed import DeviceMesh

from tvm_distir.core.ir import mesh_axes, meshes
from tvm_distir.core.ir.views import are_views, order_of
from tvm_distir.core.plan import PartitionSpec
from tvm_distir.execution.runtime.program.io_layout import EntryFunction, Port, np_dtype
from tvm_distir.execution.runtime.program.lowered import LoweredProgram
from tvm_distir.models import to_stablehlo
from tvm_distir.support import EngineError

from .process import missing

if TYPE_CHECKING:
    import jax

_WIDE = ("int64", "uint64", "float64")


class JaxFunction:
    """A distributed module as a function of JAX arrays, also inside of ``jax.jit``.

    Parameters
    ----------
    text : str
        The program as StableHLO, of full arrays with ``sdy.manual_computation``.
    entry : EntryFunction
    axes : sequence of str
        The names of the mesh axes.
    devices : sequence of jax.Device
    donated : collection of int
        The numbers of the arguments whose buffers results may take.

    Attributes
    ----------
    mesh : jax.sharding.Mesh
    inputs, outputs : tuple of Port
        What the arguments and the results are, in order.
    in_shardings, out_shardings : tuple of jax.sharding.NamedSharding
        The shardings of the arguments and of the results.
    """

    def __init__(
        self,
        text: str,
        entry: EntryFunction,
        axes: Sequence[str],
        devices: Sequence[jax.Device],
        donated: Collection[int] = (),
    ) -> None:
        import jax
        import numpy as np
        from jax.sharding import Mesh, NamedSharding

        self.inputs = tuple(sorted(entry.inputs, key=lambda port: port.index))
        self.outputs = tuple(sorted(entry.outputs, key=lambda port: port.index))
        self.mesh = Mesh(np.array(devices).reshape(entry.mesh_shape), tuple(axes))

        def shardings(ports: Sequence[Port]) -> tuple[jax.sharding.NamedSharding, ...]:
            return tuple(
                NamedSharding(self.mesh, _partition_spec(port, entry, axes)) for port in ports
            )

        self.in_shardings, self.out_shardings = shardings(self.inputs), shardings(self.outputs)
        results = tuple((port.shape, np_dtype(port.dtype)) for port in self.outputs)
        bind = functools.partial(_primitive().bind, text=text, results=results)
        self._jitted = jax.jit(
            lambda *args: tuple(bind(*args)),
            in_shardings=self.in_shardings,
            out_shardings=self.out_shardings,
            donate_argnums=tuple(donated),
        )

    def __call__(self, *args: Any) -> tuple[jax.Array, ...]:
        """Return the results for full arrays, in the order of the original's parameters.

        Parameters
        ----------
        *args : jax.Array or numpy.ndarray
            Arrays of the shapes and types of :attr:`inputs`, sharded or not; or a single mapping of
            their names to them.

        Raises
        ------
        EngineError
            DIST0602 for another number of arguments, or for other shapes or types.
        """
        if len(args) == 1 and isinstance(args[0], Mapping):
            names = [port.name for port in self.inputs]
            if set(args[0]) != set(names):
                raise _wrong(f"the names given are {sorted(args[0])}, and the inputs are {names}")
            args = tuple(args[0][name] for name in names)
        if len(args) != len(self.inputs):
            raise _wrong(f"{len(args)} arguments are given, the module has {len(self.inputs)}")
        for arg, port in zip(args, self.inputs):
            actual, expected = (tuple(arg.shape), str(arg.dtype)), (port.shape, port.dtype)
            if actual != expected:
                raise _wrong(
                    f'"{port.name}" is {actual[1]}{actual[0]}, not {expected[1]}{expected[0]}'
                )
        results: tuple[jax.Array, ...] = self._jitted(*args)
        return results


def _wrong(problem: str) -> EngineError:
    remedy = "Give full arrays in the order of the attribute inputs, or a mapping of names."
    return EngineError("DIST0602", problem, location="to_jax", remedy=remedy)


def _partition_spec(
    port: Port, entry: EntryFunction, axes: Sequence[str]
) -> jax.sharding.PartitionSpec:
    """Return JAX's form of the placement of a port, which may be on a view of the mesh."""
    from jax.sharding import PartitionSpec as JaxPartitionSpec

    home = DeviceMesh(entry.mesh_shape, entry.mesh_ranks)
    order = order_of(DeviceMesh(*entry.mesh_of(port)), home)
    return JaxPartitionSpec(*PartitionSpec.of_labels(port.labels, [axes[a] for a in order]))


@functools.cache
def _primitive() -> jax.extend.core.Primitive:
    """Return the primitive of JAX that calls a module given as text."""
    from jax.core import ShapedArray
    from jax.extend.core import Primitive
    from jax.extend.mlir import ir as mlir_ir
    from jax.extend.mlir.dialects import func
    from jax.interpreters import mlir

    primitive = Primitive("tvm_distir_program")
    primitive.multiple_results = True

    @primitive.def_abstract_eval  # type: ignore[untyped-decorator,unused-ignore]
    def result_types(*_: object, text: str, results: Sequence[Any]) -> list[jax.core.ShapedArray]:
        return [ShapedArray(shape, dtype) for shape, dtype in results]

    def lower(ctx: Any, *operands: object, text: str, results: Sequence[Any]) -> object:
        module = ctx.module_context.module
        with module.context:
            program = mlir_ir.Module.parse(text)
            symbols = ctx.module_context.symbol_table
            name = mlir.merge_mlir_modules(module, primitive.name, program, dst_symtab=symbols)
            types = symbols[name].type.results
            return func.CallOp(types, mlir_ir.FlatSymbolRefAttr.get(name), operands).results

    mlir.register_lowering(primitive, lower)
    return primitive


def to_jax(
    dist: ir.IRModule,
    devices: Sequence[jax.Device] | None = None,
    donated: Collection[int] = (),
) -> JaxFunction:
    """Return a distributed module as a function of JAX, which XLA compiles and runs.

    The function is called with full arrays, of which every device gets its shard. It may be called
    inside of ``jax.jit`` and in jobs of several processes (``jax.distributed``). It has no
    derivative: distribute a training step instead (:func:`tvm_distir.train_step`).

    Parameters
    ----------
    dist : IRModule
        The module, at level 5, of a single mesh or views of one, with shards of equal size.
    devices : sequence of jax.Device, optional
        The devices in the order of the mesh; by default the first of ``jax.devices()``.
    donated : collection of int
        The numbers of the arguments whose buffers results may take, as ``jax.jit`` donates them.

    Returns
    -------
    function : JaxFunction

    Raises
    ------
    DependencyError
        DIST0111 without JAX.
    EngineError
        DIST0603 not at level 5, DIST0605 several meshes, too few devices, or 64-bit types while
        JAX has none.
    ModelError
        DIST0380 for what has no form in StableHLO, shards of unequal size among it.

    Examples
    --------
    >>> mod = td.zoo.build("mlp", {"batch": 4, "layers": 1, "hidden": 8})
    >>> plan = td.Plan(mesh={"tp": 1}, rules={"x": td.P(None, "tp")})
    >>> function = td.to_jax(td.distribute(mod, plan))
    >>> dict(function.mesh.shape)
    {'tp': 1}
    """
    if importlib.util.find_spec("jax") is None:
        raise missing(sys.executable, "to_jax")
    import jax

    program = LoweredProgram(dist)
    known = meshes(program.mod)
    if len(program.entries) != 1 or not all(are_views(mesh, known[0]) for mesh in known):
        raise _unfit("the module has several meshes", "Use the engine threads, or one mesh.")
    (entry,) = program.entries
    placed = list(jax.devices() if devices is None else devices)
    if len(placed) < len(entry.ranks):
        raise _unfit(
            f"the module needs {len(entry.ranks)} devices, and there are {len(placed)}",
            "Set XLA_FLAGS=--xla_force_host_platform_device_count=N for CPUs before JAX is "
            "imported, or distribute the module for fewer devices.",
        )
    wide = [p.name for p in (*entry.inputs, *entry.outputs) if p.dtype in _WIDE]
    if wide and not jax.config.jax_enable_x64:
        raise _unfit(
            f'"{wide[0]}" has a type of 64 bits, which JAX turns into one of 32',
            'Call jax.config.update("jax_enable_x64", True) first.',
        )
    axes = mesh_axes(program.mod)[entry.mesh_index]
    # XLA partitions nothing for a single device, whose manual computations it then cannot run.
    text = to_stablehlo(program.mod, "manual" if len(entry.ranks) > 1 else "replicas")
    return JaxFunction(text, entry, axes, placed[: len(entry.ranks)], donated)


def _unfit(problem: str, remedy: str) -> EngineError:
    return EngineError("DIST0605", problem, location="to_jax", remedy=remedy)
