# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from . import core as core
from . import execution as execution
from . import hardware as hardware
from . import models as models
from . import performance as performance
from . import planning as planning
from . import support as support
from . import transforms as transforms
from .core.ir.mesh import device_mesh as device_mesh
from .core.plan.partition_spec import P as P
from .core.plan.plan import Plan as Plan
from .core.rewriting.dims import bind_dims as bind_dims
from .execution.deployment.checkpoint import open_weights as open_weights
from .execution.deployment.deploying import deploy as deploy
from .execution.deployment.loading import load as load
from .execution.deployment.weight_export import export_weights as export_weights
from .execution.runtime.engines.registry import run as run
from .execution.runtime.engines.xla.jax_function import to_jax as to_jax
from .execution.runtime.program.ahead_of_time import compile as compile
from .execution.runtime.program.device_objects import DeviceObjects as DeviceObjects
from .execution.runtime.program.planning import plan_storage as plan_storage
from .execution.runtime.program.sharded import ShardedArray as ShardedArray
from .execution.runtime.program.timing import measure as measure
from .execution.serving.session import Session as Session
from .execution.verification.verifying import verify as verify
from .hardware.systems.system import System as System
from .interface.analysis import analyze as analyze
from .interface.explain.explainer import explain as explain
from .interface.explain.shard_map import visualize as visualize
from .interface.ir_display import show as show
from .interface.report.comparison import compare as compare
from .models import zoo as zoo
from .models.export.stablehlo import to_stablehlo as to_stablehlo
from .models.frontends import from_exported_program as from_exported_program
from .models.frontends import from_onnx as from_onnx
from .models.hlo import from_stablehlo as from_stablehlo
from .models.model import load_model as load_model
from .models.relax_ccl import from_ccl as from_ccl
from .models.relax_nn import from_nn as from_nn
from .models.tvmscript import from_tvmscript as from_tvmscript
from .performance.program.exporter import export as export
from .performance.program.program import Program as Program
from .performance.simulation.simulator import simulate as simulate
from .performance.traces.merged import merge_traces as merge_traces
from .planning.calibration.calibrate import calibrate as calibrate
from .planning.plan_export.plan_formats import export_plan as export_plan
from .planning.search.auto_sharding import auto_shard as auto_shard
from .planning.search.driver import search as search
from .planning.serving.serving_report import serve_analyze as serve_analyze
from .planning.serving.serving_search import search_serving as search_serving
from .planning.sweep.sweep_driver import sweep as sweep
from .transforms.distribute import distribute as distribute
from .transforms.training.train_step import train_step as train_step

__version__: str
