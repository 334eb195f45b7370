# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Trace ranks of a distributed program in one process, under a fake process group."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import fx
from torch.fx.experimental import proxy_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from tvm_distir.models.common.quiet import reason, warnings_ignored
from tvm_distir.support import ModelError

from .functional_collectives import FunctionalCollectives, group_of
from .unsharded_parameters import (
    Links,
    link_parameters,
    reduced_buckets,
    unsharded_parameters,
)

Tensors = Mapping[str, torch.Tensor]
Step = Callable[[dict[str, torch.Tensor], dict[str, torch.Tensor]], Mapping[str, torch.Tensor]]
Maker = Callable[[int], tuple[Step, Tensors, Tensors]]
LINE, SCOPE = "line", "scope"
_MOST_INTEGERS = 1 << 16
_HERE = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
_TORCH = os.path.dirname(torch.__file__)
_DECOMPOSED = (
    *("nll_loss_forward", "nll_loss_backward", "_log_softmax", "_softmax"),
    *("_log_softmax_backward_data", "_softmax_backward_data", "native_layer_norm"),
    *("native_layer_norm_backward", "gelu", "gelu_backward", "silu_backward", "tanh_backward"),
    *("threshold_backward", "mse_loss", "mse_loss_backward", "sigmoid_backward", "silu"),
    *("_fused_rms_norm", "_fused_rms_norm_backward", "split_with_sizes_copy", "_foreach_mul_"),
    *("native_batch_norm", "native_batch_norm_backward", "_native_batch_norm_legit"),
)


@dataclass(frozen=True)
class TracedRank:
    """The graph of a rank.

    Attributes
    ----------
    rank : int
    module : GraphModule
        Its placeholders are the leaves, in order; its output is a flat list.
    inputs, outputs : list of str
        Names of the leaves and of the results.
    data : int
        The number of leaves at the end that are data.
    integers : dict of str to list of int
        The values of leaves that hold integers, as far as they are known and few.
    groups : dict of str to tuple of int
        The ranks of each process group, by the name in calls of collectives.
    """

    rank: int
    module: fx.GraphModule
    inputs: list[str]
    outputs: list[str]
    data: int
    integers: dict[str, list[int]]
    groups: dict[str, tuple[int, ...]]


def _decompositions() -> dict[Any, Any]:
    names = [getattr(torch.ops.aten, n) for n in _DECOMPOSED if hasattr(torch.ops.aten, n)]
    core: dict[Any, Any] = torch._decomp.core_aten_decompositions()
    copies = {torch.ops.aten._foreach_copy.default: _copied}
    return {**core, **torch._decomp.get_decompositions(names), **copies}


def _copied(
    targets: list[torch.Tensor], sources: list[torch.Tensor], non_blocking: bool = False
) -> list[torch.Tensor]:
    return [torch.ops.aten.copy(t, s, non_blocking) for t, s in zip(targets, sources)]


_WRAPPERS = ("contextlib.py", "functools.py", "typing_extensions.py")
"""Files of decorators that functions of torch run in."""


def _is_own(name: str) -> bool:
    return not (name.startswith((_TORCH, _HERE, "<")) or os.path.basename(name) in _WRAPPERS)


@contextlib.contextmanager
def _module_paths() -> Iterator[list[str]]:
    """Keep the paths of the modules that run, from the outermost to the innermost."""
    paths: list[str] = []
    names: dict[int, str] = {}

    def enter(module: torch.nn.Module, args: Any) -> None:
        if not paths:
            names.update({id(m): name for name, m in module.named_modules()})
        paths.append(names.get(id(module), ""))

    def leave(module: torch.nn.Module, args: Any, result: Any) -> None:
        paths.pop()

    nn = torch.nn.modules.module
    hooks = [
        nn.register_module_forward_pre_hook(enter),
        nn.register_module_forward_hook(leave, always_call=True),
    ]
    try:
        yield paths
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def _noted(origin: Callable[[fx.Node], Mapping[str, str]]) -> Iterator[None]:
    """Note in the metadata of each node its line and module, as a function returns them."""
    tracer: Any = proxy_tensor.PythonKeyTracer
    plain = tracer.create_node

    def create(self: Any, *args: Any, **kwargs: Any) -> fx.Node:
        node: fx.Node = plain(self, *args, **kwargs)
        node.meta.update(origin(node))
        return node

    tracer.create_node = create
    try:
        yield
    finally:
        tracer.create_node = plain


def _code_position(paths: list[str]) -> dict[str, str]:
    """Return the innermost line outside of torch and of this package, and the module's path."""
    scope = {SCOPE: paths[-1] if paths else ""}
    frame: Any = sys._getframe(3)
    while frame is not None and not _is_own(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return scope
    return {**scope, LINE: f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"}


class _Replay(fx.Interpreter):  # type: ignore[misc,unused-ignore]
    """Runs a graph, and says which node runs."""

    running: fx.Node | None = None

    def run_node(self, n: fx.Node) -> Any:
        self.running = n if n.op != "output" else None  # views of results are made there
        return super().run_node(n)

    def origin(self, node: fx.Node) -> dict[str, str]:
        """Return the line and module of the node that runs, or of an operand of the new one."""
        known = [n for n in (self.running, *node.all_input_nodes) if n and LINE in n.meta]
        return {k: v for n in known[:1] for k, v in n.meta.items() if k in (LINE, SCOPE)}


def _functional(module: fx.GraphModule, args: list[Any]) -> fx.GraphModule:
    """Return the graph without operators that write into tensors, and without unread values."""
    replay = _Replay(module)

    def flat(*values: Any) -> Any:
        return replay.run(*values)

    with _noted(replay.origin):
        turned = torch.func.functionalize(flat, remove="mutations")
        functional = proxy_tensor.make_fx(
            turned, _decompositions(), tracing_mode="fake", _allow_non_fake_inputs=True
        )(*args)
    functional.graph.eliminate_dead_code(is_impure_node=_is_kept)
    return functional


def _is_kept(node: fx.Node) -> bool:
    spaces = ("_c10d_functional", "tvm_distir")
    return node.op in ("placeholder", "output") or getattr(node.target, "namespace", "") in spaces


def trace(rank: int, world: int, make: Maker) -> TracedRank:
    """Trace a rank: without values, or with those of the parameters where it needs them (FSDP2).

    Raises
    ------
    ModelError
        DIST0363 a collective without a meaning here, DIST0364 torch cannot trace the program.
    """
    if dist.is_initialized():
        raise ModelError(
            "DIST0364", "this process is a member of a process group of torch.distributed",
            location=f"rank {rank}", remedy="Trace ranks in a process of its own.",
        )  # fmt: skip
    errors: list[Exception] = []
    hook = sys.excepthook  # a process group replaces it
    for mode in ("fake", "real"):
        dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
        try:
            with warnings_ignored(), reduced_buckets() as buckets:
                return _traced(rank, make, mode, buckets)
        except ModelError:
            raise
        except Exception as error:  # torch runs the user's program
            errors.append(error)
        finally:
            dist.destroy_process_group()
            sys.excepthook = hook
            _forget_groups()
    problem = f"torch cannot trace it: {reason(errors[0])}"
    remedy = "See which programs can be traced in docs/tasks/check.md."
    raise ModelError("DIST0364", problem, location=f"rank {rank}", remedy=remedy) from errors[0]


def _forget_groups() -> None:
    """Empty the caches of DTensor: the meshes of two ranks are equal, but not their groups."""
    modules = [m for n, m in sys.modules.items() if n.startswith("torch.distributed.tensor")]
    for value in [value for module in modules for value in vars(module).values()]:
        clear = None if isinstance(value, type) else getattr(value, "cache_clear", None)
        if callable(clear):
            clear()
    if modules:
        debug = importlib.import_module("torch.distributed.tensor.debug")
        vars(debug)["_clear_sharding_prop_cache"]()


def _refused(rank: int, problem: str) -> ModelError:
    remedy = "See in docs/tasks/check.md what a rank returns."
    return ModelError("DIST0364", problem, location=f"rank {rank}", remedy=remedy)


def _traced(rank: int, make: Maker, mode: str, buckets: Sequence[torch.Tensor]) -> TracedRank:
    step, parameters, data = make(rank)
    for name in sorted(parameters.keys() & data.keys()):
        raise _refused(rank, f'a parameter and an item of data have the name "{name}"')
    names, outputs = [*parameters, *data], list[str]()
    leaves = [*parameters.values(), *data.values()]

    def flat(*values: Any) -> list[torch.Tensor]:
        tensors = dict(zip(names, values, strict=True))
        with FunctionalCollectives():
            results = step({n: tensors[n] for n in parameters}, {n: tensors[n] for n in data})
        for name, value in results.items():
            if not isinstance(value, torch.Tensor):
                raise _refused(rank, f'the result "{name}" is no tensor')
        outputs[:] = results
        return [results[name] for name in outputs]

    links: Links = []
    with (
        _module_paths() as paths,
        _noted(lambda node: _code_position(paths)),
        unsharded_parameters(links),
    ):
        first = proxy_tensor.make_fx(flat, tracing_mode=mode, _allow_non_fake_inputs=True)(*leaves)
    link_parameters(first, links, leaves, buckets)
    second = _functional(first, [leaf.detach() for leaf in leaves])
    for node in second.graph.find_nodes(op="get_attr"):
        value = getattr(second, str(node.target))
        if isinstance(value, torch.Tensor) and value.device.type == "meta":
            problem = f"a tensor of shape {list(value.shape)} on the meta device has no values"
            raise _refused(rank, f"{problem}, and is neither a parameter nor data")
    integers = {name: _integers(leaf) for name, leaf in zip(names, leaves, strict=True)}
    return TracedRank(
        rank,
        second,
        names,
        list(outputs),
        len(data),
        {name: values for name, values in integers.items() if values},
        _groups(second.graph),
    )


def _integers(leaf: torch.Tensor) -> list[int]:
    """Return the values of a leaf of integers or bools, unless it has none or too many."""
    if leaf.is_floating_point() or leaf.device.type != "cpu" or leaf.numel() > _MOST_INTEGERS:
        return []
    return [int(value) for value in leaf.reshape(-1).tolist()]


def _groups(graph: fx.Graph) -> dict[str, tuple[int, ...]]:
    """Return the ranks of the groups that a graph names, which exist while it is traced."""
    groups: dict[str, tuple[int, ...]] = {}
    for node in graph.nodes:
        if getattr(node.target, "namespace", "") == "_c10d_functional" and len(node.args) > 1:
            name = node.args[-1]
            if isinstance(name, str):
                ranks = dist.get_process_group_ranks(group_of(name))
                groups[name] = tuple(int(r) for r in ranks)
    return groups
