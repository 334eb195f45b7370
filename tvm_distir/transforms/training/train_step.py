# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Turn a forward model into a training step (``train_step``)."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir import (
    check_module,
    is_private,
    known_shape,
    lift_branches,
    relax_functions,
    tensor_type,
)
from tvm_distir.core.ir.attributes import param_names, training_notes
from tvm_distir.core.plan import ATTENTION, Schedule, data_positions, plain_name
from tvm_distir.core.rewriting import (
    all_bindings,
    gc_paused,
    op_name,
    plain_calls,
    unpartitioned,
)
from tvm_distir.hardware import System
from tvm_distir.support import GenericConst, warn
from tvm_distir.transforms.attention.passes import with_attention_op, with_log_sum_exp
from tvm_distir.transforms.training.autodiff.function_table import NamedFunctions
from tvm_distir.transforms.training.autodiff.rules.batch_norms import without_statistics
from tvm_distir.transforms.training.optimizers.master import Master
from tvm_distir.transforms.training.optimizers.registry import optimizer_named
from tvm_distir.transforms.training.recompute.choice import Auto, read_recompute
from tvm_distir.transforms.training.step.adapter_options import adapters_of
from tvm_distir.transforms.training.step.adapters import with_adapters
from tvm_distir.transforms.training.step.dropouts import with_streams
from tvm_distir.transforms.training.step.objective import TARGETS, read_losses, unfit
from tvm_distir.transforms.training.step.parameters import Parameters
from tvm_distir.transforms.training.step.recipe import Recipe, check_functions
from tvm_distir.transforms.training.step.step_writer import TrainStepWriter


@gc_paused()
def train_step(
    mod: ir.IRModule,
    loss: str = "cross_entropy",
    optimizer: str = "sgd",
    reread: bool = False,
    *,
    clip: float = 0.0,
    loss_scale: float | str = 1.0,
    master: bool = False,
    rate_input: bool = False,
    frozen: Sequence[str] = (),
    lora: str = "",
    recompute: str | Mapping[str, str] = "none",
    system: System | str | None = None,
    schedule: Schedule | Mapping[str, Any] | str | None = None,
    recomputed_ops: Sequence[str] = (),
    **options: float,
) -> ir.IRModule:
    """Turn a model into a training step.

    The gradient of a private function is a private function: ``layer`` becomes
    ``layer_forward`` and ``layer_backward``, and what a call makes gradients of ``layer_update``
    updates, where the layer is called more than once. Every float parameter that is no data is a
    weight and gets a gradient, unless it is frozen. Functions with batch norms are inlined; these
    work on the statistics of the batch and update their running ones. A layer whose weight is a
    constant is named by a warning.

    Parameters
    ----------
    mod : IRModule
        The module, at level 1, with ``main(*data, *weights) -> output``; it and the private
        functions on the way have no effects. Of an ``If`` both branches run, and the gradients are
        those of the branch that is taken. The output is a tensor, or a tuple
        of tensors: logits (samples, ..., classes) for ``cross_entropy``, any shape for ``mse``; the
        loss of half-precision outputs is computed in float32.
    loss : str
        ``cross_entropy`` (mean over all targets except -100; int32 (samples, ...)) or ``mse``
        (mean of squares; targets are like the output), or a private function of the module,
        ``(output, *targets) -> scalar``; of several outputs a weighted sum,
        ``logits:cross_entropy*2,value:mse*0.5``, with ``logits_targets`` and ``value_targets``.
    optimizer : str
        The optimizer: ``sgd``, ``adam``, ``adamw``, ``adamw8bit``, ``lion``, ``muon``,
        ``adafactor``, or one that another package offers.
    reread : bool
        The backward pass reads the weights anew (as values that end in ``_again``, which plans
        place as the weights). Where weights of ``main`` are stored in shards, they are then
        gathered once for either part, and not held in between (ZeRO stage 3).
    clip : float
        Most that the norm of all gradients together may be, larger ones are scaled down; 0: any.
    loss_scale : float or str
        The factor by which the loss is multiplied for the backward pass, so that gradients of half
        precision do not vanish; ``dynamic``: an input that halves after a step whose gradients
        overflow, which then changes no weight, and doubles after 2000 that do not.
    master : bool
        Weights of half precision have a float32 copy, a state, on which the optimizer works.
    rate_input : bool
        The learning rate is an input of the step, ``rate``, after the targets.
    frozen : sequence of str
        Patterns of weights that are not trained.
    lora : str
        Low-rank adapters, ``r=16,alpha=32,targets=q_proj+v_proj``, which alone are trained, see
        :mod:`.adapters`; empty: none.
    recompute : str or mapping of str to str
        What the backward pass of a function makes again instead of keeping it: ``none``,
        ``megatron`` (nothing; masks of dropouts and the narrower of casts are kept),
        ``attention`` (its weights: softmax attention becomes an op), ``core`` (scores of
        attention and what has their size), ``selective`` (what takes little work), ``full`` (all
        that is read), ``checkpoint`` (the whole function, as PyTorch does), ``cut:SHARE`` (all
        but that share of the bytes, in least time); ``NAME=POLICY,...`` by functions, call by
        call as ``full*4+none``; ``auto``: what takes least time within the memory of a device,
        ``auto:memory_gib=80,activations=8,weights=1`` (parts that they are cut into).
    system : System or str, optional
        The system whose times and memory ``auto`` and ``cut`` use.
    schedule : Schedule, mapping or str, optional
        The stages and micro-batches, as ``1f1b:stages=4,micro_batches=8``. The model's batch is
        that of a single micro-batch: the step takes ``micro_batches`` times as much. The loss and
        its gradients are those of the whole batch: sums over the samples are divided by the
        weights of all samples, such as the number of targets that are not ignored. Gradients are
        summed in float32 where they are of half precision.
    recomputed_ops : sequence of str
        Ops whose results kernels of the backward pass compute again from the operand, which
        functions save instead: ``relax.nn.silu``, ``relax.nn.gelu`` and ``relax.nn.gelu_tanh``
        where they gate another value, and ``relax.astype`` to more bytes. No result changes.
    **options : float
        The options of the optimizer, see :mod:`.optimizers`.

    Returns
    -------
    IRModule
        The function ``main(*data, targets, [rate], *weights, *states, *counters) -> (loss, *new
        weights, *new states, *new counters)``, in the order of the parameters. States of a weight
        ``w`` are called ``w.momentum``, or ``w.m`` and ``w.v``, with ``w.master`` before; counters
        are ``step`` (of Adam) and ``loss_scale`` and ``scale_steps`` (of a dynamic scale).
        Statistics of batch norms count as weights, and so does ``dropout``, int64, after all
        others, of a model with dropouts: the seed times 2^32, plus the steps so far. The attribute
        ``dist.training`` records which value updates which parameter, and which is the gradient of
        a weight, so that strategies place them alike. With a schedule, there is a public function
        per stage kind, ``stage0`` the first, and the attribute ``dist.pipeline``;
        :func:`~.expand_passes.SerializePipeline` makes a single ``main`` of it.

    Raises
    ------
    ModelError
        DIST0350 an op has no gradient; DIST0351 no such loss or optimizer, a number out of range,
        a pattern that no weight fits, or the model's form is another; DIST0354 it cannot be cut
        into stages, or its loss not into micro-batches.
    PlanError
        DIST0236 the schedule is wrong.

    Examples
    --------
    >>> mod = td.zoo.build("mlp", {"batch": 4, "layers": 1, "hidden": 8})
    >>> step = td.train_step(mod, optimizer="sgd", rate=0.1)
    >>> [str(param.name) for param in step["main"].params]
    ['x', 'targets', 'head.weight', 'head.bias']
    """
    check_module(mod, "td.train_step")
    stages = Schedule.resolve(schedule)
    mod = with_adapters(unpartitioned(plain_calls(lift_branches(mod, masked=True))), lora)
    others = inspect.signature(train_step).parameters.keys() - {"mod", "options"}
    method = optimizer_named(optimizer, options, others)
    recipe = Recipe(
        read_losses(loss),
        Master(method) if master else method,
        reread,
        clip,
        loss_scale,
        rate_input,
        tuple(frozen),
        read_recompute(recompute),
        System.resolve(system),
        tuple(recomputed_ops),
        frozenset(adapters_of(mod)),
    )
    return _written(mod, recipe, stages)


def _written(mod: ir.IRModule, recipe: Recipe, stages: Schedule | None) -> ir.IRModule:
    """Write the step of a model."""
    mod = with_attention_op(mod) if recipe.recomputes(ATTENTION) else with_log_sum_exp(mod)
    mod, original = with_streams(without_statistics(mod), as_input=stages is not None), mod
    functions = NamedFunctions(mod)
    main = functions.of.get("main")
    if not isinstance(main, relax.Function):
        raise unfit("there is no function main")
    if training_notes(main, "updated"):
        raise unfit("the model is already a training step")
    if plain_name(TARGETS) in map(plain_name, param_names(main)):
        raise unfit(f'a parameter is called "{TARGETS}": the model is already a training step')
    check_functions(
        recipe, [str(gv.name_hint) for gv, fn in relax_functions(original) if is_private(fn)]
    )
    warn_of_constants(original)
    data = data_positions(original["main"])
    streams = len(main.params) - len(original["main"].params)

    def params() -> Parameters:
        return Parameters(relax.utils.copy_with_new_vars(main), data, streams, recipe, functions)

    auto = recipe.recompute
    if stages is not None:
        from tvm_distir.transforms.training.pipeline.pipeline_step import StagedStep

        if isinstance(auto, Auto):
            from tvm_distir.transforms.training.auto_recompute.staged_automatic import (
                decided_in_stages,
            )

            plain = StagedStep(params(), recipe, NamedFunctions(mod), stages).run(original.attrs)
            recipe = replace(recipe, recompute=decided_in_stages(plain, recipe, auto))
        return StagedStep(params(), recipe, functions, stages).run(original.attrs).module
    if isinstance(auto, Auto):
        from tvm_distir.transforms.training.auto_recompute.automatic import decided

        trial = TrainStepWriter(params(), recipe, NamedFunctions(mod))
        recipe = replace(recipe, recompute=decided(trial, auto))
    step = TrainStepWriter(params(), recipe, functions)
    return functions.module({"main": step.run()}, original.attrs)


_WEIGHTS = {
    "relax.matmul": (0, 1),
    "relax.take": (0,),
    **{f"relax.nn.conv{n}d{t}": (1,) for n in (1, 2, 3) for t in ("", "_transpose")},
    "relax.nn.batch_norm": (1, 2, 3, 4),
    "relax.nn.group_norm": (1, 2),
    "relax.nn.instance_norm": (1, 2),
    "relax.nn.layer_norm": (1, 2),
    "relax.nn.rms_norm": (1,),
}
"""Operands that are weights of a layer, by op; of batch norms its running statistics too."""

SHOWN = 3


def constant_weights(mod: ir.IRModule) -> Iterator[str]:
    """Yield ``function/binding (op)`` of each use of a constant as a layer's weight."""
    for gv, fn in relax_functions(mod):
        for binding in all_bindings(fn.body):
            value = binding.value
            if not isinstance(value, ir.Call) or not isinstance(value.op, ir.Op):
                continue
            for position in _WEIGHTS.get(str(value.op.name), ()):
                if _is_weight(value.args[position]):
                    yield f"{gv.name_hint}/{binding.var.name} ({op_name(value)})"
                    break


def _is_weight(arg: object) -> bool:
    if not isinstance(arg, GenericConst):
        return False
    tensor, shape = tensor_type(arg.ty), known_shape(arg.ty)
    return tensor is not None and "float" in str(tensor.dtype) and bool(shape)


def warn_of_constants(mod: ir.IRModule) -> None:
    """Warn of layers whose weights are constants."""
    names = list(dict.fromkeys(constant_weights(mod)))
    if names:
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        warn(
            f"constants are not trained: the weights of {', '.join(names[:SHOWN])}{more}; "
            "export the model with its weights as parameters to train them",
            stacklevel=3,
        )
