# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from . import analysis as analysis
from . import errors as errors
from . import explain as explain
from . import ops as ops
from . import propagation as propagation
from . import redistribution as redistribution
from . import searching as searching
from . import strategy as strategy
from . import transform as transform
from .calibration import calibrate as calibrate
from .deployment import deploy as deploy
from .deployment import load as load
from .deployment import open_weights as open_weights
from .frontend import from_exported_program as from_exported_program
from .frontend import from_onnx as from_onnx
from .frontend import from_stablehlo as from_stablehlo
from .frontend import from_tvmscript as from_tvmscript
from .frontend import load_model as load_model
from .frontend import zoo as zoo
from .interchange import to_stablehlo as to_stablehlo
from .ir import device_mesh as device_mesh
from .ir.rewrite import bind_dims as bind_dims
from .plan import Plan as Plan
from .program import Program as Program
from .program import export as export
from .report import compare as compare
from .runtime import ShardedArray as ShardedArray
from .runtime import measure as measure
from .runtime import plan_storage as plan_storage
from .runtime import run as run
from .searching import label as label
from .searching import search as search
from .simulation import simulate as simulate
from .sweeping import sweep as sweep
from .system import System as System
from .transform import distribute as distribute
from .transform.gradient import train_step as train_step
from .verification import verify as verify

__version__: str
