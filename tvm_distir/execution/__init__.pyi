# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .checking.checking import check as check
from .checking.own_plan import distributed_reference as distributed_reference
from .checking.report import CheckReport as CheckReport
from .checking.value_origin import ValueOrigin as ValueOrigin
from .checking.value_origin import explain_value as explain_value
from .deployment.checkpoint import open_weights as open_weights
from .deployment.deploying import deploy as deploy
from .deployment.deploying import replaceable as replaceable
from .deployment.loading import load as load
from .deployment.weight_export import export_weights as export_weights
from .runtime.collectives.legalize import register_legalization as register_legalization
from .runtime.dispatch.packed_names import check_dispatch as check_dispatch
from .runtime.engines.mpi.engine import MpiEngine as MpiEngine
from .runtime.engines.registry import engine as engine
from .runtime.engines.torch.engine import TorchEngine as TorchEngine
from .runtime.program.device_objects import DeviceObjects as DeviceObjects
from .runtime.program.planning import plan_storage as plan_storage
from .runtime.program.run_trace import check_trace_path as check_trace_path
from .runtime.program.sharded import ShardedArray as ShardedArray
from .runtime.program.targets import as_target as as_target
from .runtime.program.timing import measure as measure
from .serving.folder_runs import serve as serve
from .serving.generation import generate as generate
from .serving.generation import serve_prompts as serve_prompts
from .serving.prompts import Generation as Generation
from .serving.prompts import PromptFile as PromptFile
from .serving.prompts import Sampling as Sampling
from .serving.rate_schedule import RateSchedule as RateSchedule
from .serving.serve_options import ServeOptions as ServeOptions
from .serving.session import Session as Session
from .verification.random_inputs import draw_inputs as draw_inputs
from .verification.report import VerifyReport as VerifyReport
from .verification.verifying import verify as verify
