# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .activation_sequence import sequence as sequence
from .completion import complete as complete
from .composition import compose as compose
from .composition import make_plan as make_plan
from .composition import merge as merge
from .context_parallelism import context_parallel as context_parallel
from .data_parallelism import data_parallel as data_parallel
from .expert_parallelism import expert_parallel as expert_parallel
from .local_branches import local_layers as local_layers
from .megatron_lm import megatron as megatron
from .memory_fit import evenly_cut as evenly_cut
from .memory_fit import fitted as fitted
from .memory_fit import is_auto as is_auto
from .pipelining import pipeline as pipeline
from .pipelining import schedule_of as schedule_of
from .presets import deepspeed_zero1 as deepspeed_zero1
from .presets import deepspeed_zero2 as deepspeed_zero2
from .presets import deepspeed_zero3 as deepspeed_zero3
from .presets import fsdp as fsdp
from .presets import hsdp as hsdp
from .presets import lightning_sharded as lightning_sharded
from .registry import StrategyInfo as StrategyInfo
from .registry import StrategySpec as StrategySpec
from .registry import find_strategy as find_strategy
from .registry import parse as parse
from .registry import plan_maker as plan_maker
from .registry import strategy_names as strategy_names
from .spatial_parallelism import spatial_parallel as spatial_parallel
from .tensor_parallelism import tensor_parallel as tensor_parallel
from .training_parts import new_names as new_names
from .training_parts import with_updates as with_updates
from .zero_redundancy import zero as zero
