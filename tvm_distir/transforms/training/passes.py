# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define TrainStep, which turns a forward model into a training step.

Before::

    def layer(x, w) -> y                                # private
    def main(x, h_0_w, h_1_w):
        y = cls.layer(x, h_0_w)
        z = cls.layer(y, h_1_w)

After, with ``loss="mse"``::

    def layer_forward(x, w) -> (y, (saved...))          # private
    def layer_backward(grad, (saved...), w) -> (x's gradient, w's gradient)
    def layer_update(w, w_grad) -> (new w,)
    def main(x, targets, h_0_w, h_1_w):
        y_both = cls.layer_forward(x, h_0_w)
        ...
        y_back = cls.layer_backward(y_grad, y_saved, h_0_w)
        y_update = cls.layer_update(h_0_w, h_0_w_grad)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm_distir.core.passes import Rewrite, module_pass
from tvm_distir.hardware import System
from tvm_distir.transforms.training.optimizers.registry import read_optimizer

from .train_step import train_step


@module_pass("global")
def TrainStep(
    loss: str = "cross_entropy",
    optimizer: str = "sgd",
    reread: bool = False,
    clip: float = 0.0,
    loss_scale: str = "1",
    master: bool = False,
    rate_input: bool = False,
    frozen: Sequence[str] = (),
    lora: str = "none",
    recompute: str = "none",
    system: System | str | None = None,
    schedule: str = "none",
) -> Rewrite:
    """Turn a model into a training step whose functions remain functions.

    What :func:`tvm_distir.train_step` does, as a pass.

    Parameters
    ----------
    loss : str
        The loss: cross_entropy or mse, a function, or OUTPUT:LOSS*WEIGHT,...
    optimizer : str
        The optimizer and its options, as adamw:rate=0.001.
    reread : bool
        Whether the backward pass gathers the weights again.
    clip : float
        Maximum norm of all gradients together; 0 for no clipping.
    loss_scale : str
        Factor of the loss in the backward pass: a number, or dynamic.
    master : bool
        Whether the optimizer updates float32 copies of half-precision weights.
    rate_input : bool
        Whether the learning rate is an input of the step.
    frozen : sequence of str
        Patterns of weights that are not trained.
    lora : str
        Low-rank adapters, which alone are trained, as r=16,alpha=32,targets=q_proj+v_proj; none
        to train the weights.
    recompute : str
        Recomputation policy of functions (activation checkpointing): none, attention, core,
        selective, alternate, full, checkpoint, cut:SHARE, NAME=POLICY,..., or
        auto:memory_gib=..., the least recomputation that fits in the memory.
    system : System or str, optional
        System whose times and memory decide the recomputation.
    schedule : str
        Stages and micro-batches, as 1f1b:stages=4,micro_batches=8; none for no pipeline.

    Returns
    -------
    Pass
        A module pass. It raises ModelError DIST0350 for an op without a gradient, DIST0351 for an
        unknown loss or optimizer and for a model of another form.

    Raises
    ------
    UsageError
        DIST0152 if the options of the optimizer are no numbers.
    """
    name, options = read_optimizer(optimizer, "TrainStep")
    settings: dict[str, Any] = dict(options)
    return lambda mod: train_step(
        mod,
        loss,
        name,
        reread,
        clip=clip,
        loss_scale=loss_scale,
        master=master,
        rate_input=rate_input,
        frozen=frozen,
        lora="" if lora == "none" else lora,
        recompute=recompute,
        system=system,
        schedule=None if schedule == "none" else schedule,
        **settings,
    )
