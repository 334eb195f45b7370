# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Import StableHLO, from Python and as a MODEL string with keys."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from tvm import ir

from tvm_distir.models.common.spec import batch_fault, split_keys
from tvm_distir.support import ModelError, optional_module


def from_stablehlo(
    source: object,
    *,
    data: Collection[str] | None = None,
    inline: int = 8,
    loops: int | None = None,
    shardings: bool = True,
    opaque: bool = False,
    dims: Mapping[str, int] | None = None,
) -> ir.IRModule:
    """Import a module of StableHLO, as JAX writes it.

    Private functions stay functions, loops of known rounds are written out, and shardings become
    annotations: a module that has some is at the annotated level.

    Parameters
    ----------
    source : str, Path, bytes, or an object of JAX
        Text or a path; bytecode, for which the extra ``jax`` is needed; what
        ``jax.jit(f).lower(...)`` or ``jax.export.export(jax.jit(f))(...)`` gives.
    data : collection of str, optional
        Names of the arguments that are data; by default those that are no part of a structure
        (``x``, not ``p['w']``) and, where the module returns a structure anew (the state of a
        step), other structures that have a batch; keys of random numbers are none. The others are
        weights. Names are in texts with locations only (``as_text(debug_info=True)``); arguments
        without are ``arg0``, ...
    inline : int
        Private functions of at most so many operations are written into their callers.
    loops : int, optional
        The bound of loops that data ends and no counter bounds: the results are those after so many
        iterations where a loop would go on. None: such loops are refused.
    shardings : bool
        Whether to take over ``sdy.sharding`` and ``mhlo.sharding``.
    opaque : bool
        Whether custom calls that are not known become calls of packed functions of their names, on
        full tensors: a step with them is analyzed, and runs where these functions are registered.
        False: they are refused by name.
    dims : mapping of str to int, optional
        The sizes of symbolic dims, by the names of ``jax.export.symbolic_shape``; JAX is needed.

    Returns
    -------
    IRModule
        ``main(*data, *weights)``; its attribute ``num_input`` counts the data, and
        ``dist.param_names`` holds the names (``p.layers.0.w``).

    Raises
    ------
    ModelError
        DIST0301, DIST0303, DIST0304 the file; DIST0313 sizes of dims; DIST0370 to DIST0373 the
        module.

    Examples
    --------
    >>> mod = td.from_stablehlo('''
    ... module {
    ...   func.func public @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
    ...     %y = stablehlo.tanh %x : tensor<4x8xf32>
    ...     return %y : tensor<4x8xf32>
    ...   }
    ... }
    ... ''')
    >>> mod["main"].ret_ty
    R.Tensor((4, 8), dtype="float32")
    """
    from tvm_distir.models.stablehlo.importer import from_stablehlo as read

    if loops is not None and loops < 1:
        problem = f"loops={loops} is not a bound of iterations"
        remedy = "Give 1 or more, or leave it out: counted loops need no bound."
        raise ModelError("DIST0373", problem, location="loops", remedy=remedy)
    options: Any = {"inline": inline, "loops": loops, "shardings": shardings, "opaque": opaque}
    return read(source, data=data, dims=dims, **options)


def from_jax(
    function: Callable[..., object],
    *args: object,
    data: Collection[str] | None = None,
    inline: int = 8,
    loops: int | None = None,
    **kwargs: object,
) -> ir.IRModule:
    """Import a function of JAX, whose parameters are named by the paths of the leaves.

    Parameters
    ----------
    function : callable
        A function of arrays in trees; if it is jitted, its static arguments and shardings count.
    *args, **kwargs
        Arguments of the function: trees of arrays or of ``jax.ShapeDtypeStruct``.
    data, inline, loops
        As for :func:`from_stablehlo`.

    Returns
    -------
    IRModule
        ``main(*data, *weights)``. A leaf of ``params["layers"][0]["q"]`` is ``params.layers.0.q``;
        results are flat, in the order of the leaves of the function's result.

    Raises
    ------
    DependencyError
        DIST0111 without JAX.
    ModelError
        DIST0370 to DIST0373 the module.

    Examples
    --------
    >>> layer = {"up": np.zeros((4, 8), "float32"), "down": np.zeros((8, 4), "float32")}
    >>> x = np.zeros((2, 4), "float32")
    >>> mod = td.from_jax(lambda p, x: x @ p["up"] @ p["down"], layer, x)
    >>> [str(name) for name in mod["main"].attrs["dist.param_names"]]
    ['x', 'p.down', 'p.up']
    """
    optional_module("jax", "from_jax", "jax")
    from jax import export, jit

    jitted = function if hasattr(function, "lower") else jit(function)
    exported = export.export(jitted)(*args, **kwargs)
    return from_stablehlo(exported, data=data, inline=inline, loops=loops)


def read_stablehlo(path: str, spec: str, batch: int | None, dims: Mapping[str, int]) -> ir.IRModule:
    """Read the module of a MODEL string, with the keys after its question mark.

    Raises
    ------
    ModelError
        DIST0313, DIST0314 sizes are given, DIST0373 an unknown key; and what
        :func:`from_stablehlo` raises.
    """
    if batch is not None:
        raise batch_fault("StableHLO", spec, "export it with another one")
    _, keys = split_keys(spec.removeprefix(path).replace("?", "m?", 1), spec)
    options: dict[str, Any] = {}
    for key, value in keys.items():
        if key == "data":
            options["data"] = value.split("+")
        elif key in ("inline", "loops") and value.isdecimal():
            options[key] = int(value)
        elif key in ("shardings", "opaque") and value in ("0", "1"):
            options[key] = value == "1"
        else:
            problem = f'"{key}={value}" is not an option'
            remedy = "Give data=NAME+NAME, inline=N, loops=N, shardings=0, opaque=1."
            raise ModelError("DIST0373", problem, location=spec, remedy=remedy)
    return from_stablehlo(path, dims=dims, **options)
