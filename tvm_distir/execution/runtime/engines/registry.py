# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Register engines by name, and run modules."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvm_distir.execution.runtime.dispatch.packed_names import AUTO, check_dispatch
from tvm_distir.execution.runtime.program.inputs import Inputs
from tvm_distir.execution.runtime.program.run_trace import check_trace_path
from tvm_distir.support import EngineError, Registry, is_runtime_only, nearest

from .base import Engine

ENGINES = Registry(
    "tvm_distir.engines",
    {
        "mpi": f"{__package__}.mpi.engine:MpiEngine",
        "threads": f"{__package__}.threads.engine:ThreadsEngine",
        "torch": f"{__package__}.torch.engine:TorchEngine",
        "virtual": f"{__package__}.virtual.engine:VirtualEngine",
        "xla": f"{__package__}.xla.engine:XlaEngine",
    },
)
"""Classes of engines by name; each is imported when it is asked for and made without arguments."""

REMOVED = {"processes": 'Use "threads", or "torch", which runs a process per rank (extra torch).'}
"""The remedies for names of engines that earlier versions had."""


def engine(name: str | Engine, dispatch: str = AUTO) -> Engine:
    """Make the engine of that name; an engine object is returned as it is.

    Parameters
    ----------
    name : str or Engine
    dispatch : str
        Whose kernels modules call (:func:`run`). An engine object is copied to set it.

    Raises
    ------
    EngineError
        DIST0601 for an unknown name, DIST0623 for a library whose kernels cannot be called.
    DependencyError
        DIST0114 where another package offers the name and has no such engine.
    """
    if dispatch != AUTO:
        check_dispatch(dispatch)
        dispatching = copy.copy(engine(name))
        dispatching.dispatch = dispatch
        return dispatching
    if not isinstance(name, str):
        return name
    if name == "virtual" and is_runtime_only():
        # There is no IR to go through step by step: its functions are compiled.
        from .threads.plain import PlainEngine

        return PlainEngine()
    if name not in ENGINES:
        remedy = REMOVED.get(name) or nearest(name, sorted(ENGINES.names()))
        raise EngineError(
            "DIST0601", f'there is no engine "{name}"', location="engine", remedy=remedy
        )
    target: Any = ENGINES.load(name)
    if name in ENGINES.builtin:
        builtin: Engine = target()
        return builtin
    offer = ENGINES.offered()[name]
    try:
        offered = target()
    except Exception as error:  # whatever the package's own code raises
        raise offer.fault(f"it raised {type(error).__name__}: {error}") from error
    if not isinstance(offered, Engine):
        raise offer.fault(f"it is not a class of engines: it makes {offered!r}")
    return offered


def run(
    dist: Any,
    inputs: Inputs,
    engine: str | Engine = "threads",
    outputs: str = "whole",
    *,
    dispatch: str = AUTO,
    entry: str | None = None,
    trace: str | Path | None = None,
    donate: Sequence[str] = (),
) -> list[Any]:
    """Run a distributed module on all its devices.

    Parameters
    ----------
    dist : IRModule or Deployment
        The module, at level 5, with ``dist.io``: the result of ``LowerDistIR``; or the result of
        :func:`tvm_distir.load`.
    inputs : sequence or mapping
        The inputs in the order of the original ``main``'s parameters, or by their names. Each is a
        full array of exactly the parameter's shape and type, which is sharded; a stored array
        (:func:`tvm_distir.open_weights`), of which only shards are read; or a
        :class:`.ShardedArray`, whose parts are used as they are. For an object (``R.Any``), such as
        a cache, :class:`.DeviceObjects` with an object of each device.
    engine : str or Engine
        The name of an engine, ``"threads"``, ``"virtual"``, ``"mpi"``,
        ``"torch"``, ``"xla"``, or an engine object with particular options.
    outputs : str
        ``"whole"``, or ``"sharded"`` to leave them on their ranks.
    dispatch : str
        Whose kernels compute the matrix products, attention and convolutions of a module, on the
        same memory: ``"torch"`` (PyTorch, the extra of this name), ``"numpy"`` (NumPy's BLAS), or
        ``"tvm"``. The results differ by rounding. ``"auto"`` is PyTorch where it is installed, or
        else NumPy; for CUDA it is PyTorch, on other GPUs TVM.
    entry : str, optional
        The function to run, of a module with several entry points, such as ``decode``.
    trace : str or Path, optional
        The JSON file for the kernels and collectives of each rank with their times, which Perfetto
        opens; of the engines ``"threads"``, ``"mpi"`` and ``"torch"``.
    donate : sequence of str, optional
        Names, or patterns of names such as ``"*_cache"``, of inputs that the run may overwrite; the
        caller does not read these arrays afterwards, as with ``donate_argnums`` of JAX.
        The engines ``"threads"`` and ``"virtual"`` apply
        :class:`~tvm_distir.transforms.DonateInputs` to a module, and share the memory: with
        ``outputs="sharded"`` the results are the same arrays. Others copy.

    Returns
    -------
    outputs : list of ndarray, or of ShardedArray
        The outputs in the order of the original function's flattened results.

    Raises
    ------
    EngineError
        DIST0601 unknown engine, DIST0602 inputs that do not fit, DIST0603 not at level 5,
        DIST0604 replicas that differ, DIST0605 a construct the engine cannot run, DIST0607
        unknown form of outputs, DIST0609 a target that is no CPU, DIST0610 to DIST0613 failures
        of ranks, DIST0623 for kernels that cannot be called.
    DependencyError
        DIST0111 for ``dispatch="torch"`` without PyTorch.
    UsageError
        DIST0152 or DIST0153 for a trace that cannot be written.

    Examples
    --------
    >>> mod = td.zoo.build("mlp", {"batch": 4, "layers": 1, "hidden": 8})
    >>> plan = td.Plan(mesh={"tp": 2}, rules={"x": td.P(None, "tp")})
    >>> dist = td.distribute(mod, plan)
    >>> inputs = [np.ones((4, 8), "float32"), np.ones((8, 8), "float32"), np.zeros(8, "float32")]
    >>> (output,) = td.run(dist, inputs, engine="virtual")
    >>> output.shape, output[0, :3].tolist()
    ((4, 8), [8.0, 8.0, 8.0])
    """
    if entry is not None:
        from tvm_distir.core.ir import check_module
        from tvm_distir.core.rewriting import keep_entry

        check_module(dist, "td.run")
        dist = keep_entry(dist, entry)
    chosen = _engine(engine, dispatch)
    if trace is not None:
        chosen = copy.copy(chosen)
        chosen.trace = check_trace_path(trace)
    if donate:
        chosen = copy.copy(chosen)
        chosen.donate = donate
    return chosen.run(dist, inputs, outputs)


_engine = engine
