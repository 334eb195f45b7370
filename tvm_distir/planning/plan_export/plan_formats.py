# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write a plan in a format of another framework (``td.export_plan``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tvm import ir

from tvm_distir.core.plan import PlanLike, as_plan
from tvm_distir.support import check_choice
from tvm_distir.transforms import fused_for

from .axis_uses import describe
from .deepspeed_config import deepspeed_config
from .exported_plan import ExportedPlan, placed
from .megatron_options import megatron_options
from .python_code import dtensor_code, jax_code
from .torchtitan_options import torchtitan_options

PLAN_FORMATS: Mapping[str, Callable[[ir.IRModule, ExportedPlan], str]] = MappingProxyType(
    {
        "dtensor": dtensor_code,
        "jax": jax_code,
        "megatron": megatron_options,
        "torchtitan": torchtitan_options,
        "deepspeed": deepspeed_config,
    }
)


def export_plan(mod: ir.IRModule, plan: PlanLike, form: str) -> str:
    """Write a plan as code or configuration of another framework.

    =============== ==========================================================================
    format          what is written
    =============== ==========================================================================
    ``dtensor``     a Python function for PyTorch: ``parallelize_module`` and ``fully_shard``
    ``jax``         Python code with the ``PartitionSpec`` of every parameter
    ``megatron``    command-line options of Megatron-LM
    ``torchtitan``  command-line options of torchtitan
    ``deepspeed``   the JSON configuration of DeepSpeed
    =============== ==========================================================================

    The formats of trainers state the kind and degree of each parallelism, so the plan must shard
    the weights as these trainers do. What a format cannot express is refused, never left out.

    Parameters
    ----------
    mod : IRModule
        The model or training step that the plan is for, at level 1.
    plan : Plan, mapping, str or Path
    form : str
        A format of the table.

    Returns
    -------
    text : str
        Ends with a newline.

    Raises
    ------
    UsageError
        DIST0152 there is no such format.
    PlanError
        DIST0241 the format cannot express the plan.

    Examples
    --------
    >>> mod = td.zoo.llama(size="tiny")
    >>> plan = td.planning.make_plan(mod, "data_parallel+megatron", {"dp": 2, "tp": 2})
    >>> print(td.export_plan(mod, plan, "megatron"), end="")
    --tensor-model-parallel-size 2
    --micro-batch-size 8
    --global-batch-size 16
    """
    check_choice(form, "format", PLAN_FORMATS, "export_plan")
    facts, plan = placed if form == "jax" else describe, as_plan(plan, mod)
    mod = fused_for(mod, plan)
    return PLAN_FORMATS[form](mod, facts(mod, plan))
