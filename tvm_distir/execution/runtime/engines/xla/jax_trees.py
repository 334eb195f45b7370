# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Distribute functions of JAX: trees in, trees out, on JAX's own devices (``jit``)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvm import ir

from tvm_distir.core.ir.attributes import FRONTEND_ATTR, param_names
from tvm_distir.core.plan import MAIN, Plan, PlanLike, as_plan
from tvm_distir.hardware import System
from tvm_distir.models import from_stablehlo
from tvm_distir.support import EngineError, UsageError, optional_module
from tvm_distir.transforms import distribute

from .jax_function import JaxFunction, to_jax

if TYPE_CHECKING:
    import jax


@dataclass(frozen=True, eq=False)
class JaxStep:
    """A function of JAX that is distributed, for arguments of infos shapes and types.

    Attributes
    ----------
    mod : IRModule
        The imported module; its parameters are named by the paths of the leaves.
    plan : Plan or None
        None where the module is distributed by the shardings in the function.
    function : JaxFunction
        The program of flat arrays, data before weights.
    in_shardings : tuple
        ``jax.sharding.NamedSharding`` of each leaf of the positional arguments, as trees like them.
    out_shardings : tree of jax.sharding.NamedSharding
        Those of the result, as a tree like it.
    """

    mod: ir.IRModule
    plan: Plan | None
    function: JaxFunction
    in_shardings: tuple[object, ...]
    out_shardings: object
    _positions: tuple[int, ...]
    _exported: jax.export.Exported

    def run(self, leaves: Sequence[jax.Array]) -> Any:
        """Return the tree of results for the leaves of the arguments."""
        import jax

        avals = self._exported.in_avals
        arrays = (_plain(leaves[position], avals[position]) for position in self._positions)
        placed = map(jax.device_put, arrays, self.function.in_shardings)
        results = map(_of_type, self.function(*placed), self._exported.out_avals)
        return jax.tree.unflatten(self._exported.out_tree, results)


def _is_key(aval: jax.core.ShapedArray) -> bool:
    """Return whether an array holds typed keys of ``jax.random``."""
    import jax

    return bool(jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key))


def _plain(leaf: jax.Array, aval: jax.core.ShapedArray) -> jax.Array:
    """Return an argument as an array of numbers, of typed keys their words."""
    import jax

    if _is_key(aval):
        return jax.random.key_data(leaf)
    return jax.numpy.asarray(leaf, aval.dtype)


def _of_type(array: jax.Array, aval: jax.core.ShapedArray) -> jax.Array:
    """Return a result, of words of keys as typed keys."""
    import jax

    if not _is_key(aval):
        return array
    impl = jax.random.key_impl(jax.numpy.empty((), aval.dtype))
    return jax.random.wrap_key_data(array, impl=impl)


class JittedFunction:
    """A function of JAX that is distributed when it is first called (see :func:`jit`).

    Parameters
    ----------
    function : callable
    planned : callable
        Returns the plan of a module.
    imported : callable
        Returns the module of what JAX exports.
    devices : sequence of jax.Device, optional
    """

    def __init__(
        self,
        function: Callable[..., object],
        planned: Callable[[ir.IRModule], Plan | None],
        imported: Callable[[jax.export.Exported], ir.IRModule],
        devices: Sequence[jax.Device] | None,
    ) -> None:
        import jax

        functools.update_wrapper(self, function)
        self._jitted: Any = function if hasattr(function, "lower") else jax.jit(function)
        self._planned, self._imported, self._devices = planned, imported, devices
        self._steps: dict[object, JaxStep] = {}

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Return the function's result, a tree of arrays that are sharded over the devices."""
        import jax

        return self.lower(*args, **kwargs).run(jax.tree.leaves((args, kwargs)))

    def lower(self, *args: object, **kwargs: object) -> JaxStep:
        """Return the distributed step for arguments, or for trees of ``jax.ShapeDtypeStruct``.

        Raises
        ------
        EngineError
            DIST0602 static arguments, and what :func:`.to_jax` raises.
        ModelError
            What :func:`.from_jax` raises.
        """
        import jax

        leaves, tree = jax.tree.flatten((args, kwargs))
        types = tuple(map(_typed, leaves))
        if (tree, types) not in self._steps:
            self._steps[tree, types] = self._lowered(*jax.tree.unflatten(tree, types))
        return self._steps[tree, types]

    def _lowered(self, args: tuple[object, ...], kwargs: dict[str, object]) -> JaxStep:
        import jax
        from jax.sharding import NamedSharding, PartitionSpec

        exported = jax.export.export(self._jitted)(*args, **kwargs)
        mod = self._imported(exported)
        plan = self._planned(mod)
        order = [str(name) for name in mod.attrs[FRONTEND_ATTR]["arguments"]]
        position_of = dict(zip(order, exported.module_kept_var_idx, strict=True))
        positions = tuple(position_of[name] for name in param_names(mod[MAIN]))
        infos = jax.tree.leaves(self._jitted.trace(*args, **kwargs).args_info)
        donated = [i for i, position in enumerate(positions) if infos[position].donated]
        function = to_jax(distribute(mod, plan), self._devices, donated)
        replicated = NamedSharding(function.mesh, PartitionSpec())
        shardings = dict(zip(positions, function.in_shardings, strict=True))
        every = [shardings.get(i, replicated) for i in range(len(exported.in_avals))]
        inputs = map(_of_array, every, exported.in_avals)
        outputs = map(_of_array, function.out_shardings, exported.out_avals)
        tree = jax.tree.unflatten(exported.in_tree, inputs)[0]
        results = jax.tree.unflatten(exported.out_tree, outputs)
        return JaxStep(mod, plan, function, tree, results, positions, exported)


def _typed(leaf: object) -> jax.ShapeDtypeStruct:
    """Return the shape and type of an argument, whatever its sharding is."""
    import jax

    try:
        aval = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf)
    except TypeError:
        problem = f"an argument is {type(leaf).__name__}, which is no array"
        remedy = "Bind static arguments first: functools.partial(f, name=value)."
        raise EngineError("DIST0602", problem, location="jit", remedy=remedy) from None
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def _of_array(
    sharding: jax.sharding.NamedSharding, aval: jax.core.ShapedArray
) -> jax.sharding.NamedSharding:
    """Return the sharding of an array, of whose keys the flat array has the words too."""
    from jax.sharding import NamedSharding, PartitionSpec

    return NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[: len(aval.shape)]))


def jit(
    function: Callable[..., object],
    mesh: Mapping[str, int] | jax.sharding.Mesh | None = None,
    *,
    strategy: str | None = None,
    plan: PlanLike = None,
    system: System | str | None = None,
    data: Collection[str] | None = None,
    loops: int | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> JittedFunction:
    """Distribute a function of JAX, such as a training step, as ``jax.jit`` compiles one.

    When it is called with arguments of new shapes, it is traced by JAX, imported
    (:func:`.from_jax`), distributed and compiled by XLA for the devices. Arguments that the
    function donates (``jax.jit(f, donate_argnums=...)``) are donated. It may be called inside of
    other functions of JAX, and has no derivative.

    Parameters
    ----------
    function : callable
        A function of trees of arrays, jitted or not.
    mesh : mapping of str to int, or jax.sharding.Mesh, optional
        The axes for a strategy; a mesh of JAX names the devices too.
    strategy : str, optional
        Strategies joined with ``+``, as ``--strategy`` takes them.
    plan : Plan, mapping, str or Path, optional
        A plan, whose rules name leaves by their paths, as ``params.layers.0.q``, with its own mesh.
        Without a plan and a strategy the shardings in the function count
        (``jax.jit(f, in_shardings=...)``).
    system : System or str, optional
        Whose times determine where a strategy asks for them.
    data, loops
        As for :func:`.from_stablehlo`.
    devices : sequence of jax.Device, optional
        The devices in the order of the mesh; by default the first of ``jax.devices()``.

    Returns
    -------
    jitted : JittedFunction
        ``jitted(*args)`` returns the tree that the function returns, and ``jitted.lower(*args)``
        the plan, the module, and the shardings as trees.

    Raises
    ------
    DependencyError
        DIST0111 without JAX.
    UsageError
        DIST0151 a plan beside a strategy, or a strategy without a mesh, or a mesh without one.

    Examples
    --------
    >>> def step(params, x):
    ...     return {"y": x @ params["w"]}
    >>> jitted = td.jit(step, {"tp": 1}, strategy="tensor_parallel")
    >>> result = jitted({"w": np.ones((4, 8), "float32")}, np.ones((2, 4), "float32"))
    >>> result["y"].shape
    (2, 8)
    """
    jax = optional_module("jax", "jit", "jax")
    if (strategy is None) != (mesh is None) or None not in (plan, strategy):
        problem = "a strategy and a mesh, or a plan alone, say how the function is distributed"
        remedy = "Give mesh= and strategy=, or plan=."
        raise UsageError("DIST0151", problem, location="jit", remedy=remedy)
    if isinstance(mesh, jax.sharding.Mesh):
        devices = mesh.devices.flatten().tolist() if devices is None else devices
        mesh = dict(mesh.shape)

    def planned(mod: ir.IRModule) -> Plan | None:
        from tvm_distir.planning import make_plan

        if strategy is None or mesh is None:
            return None if plan is None else as_plan(plan, mod)
        return make_plan(mod, strategy, mesh, system)

    imported = functools.partial(from_stablehlo, data=data, loops=loops)
    return JittedFunction(function, planned, imported, devices)
