# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .collectives import register_legalization as register_legalization
from .engines import Engine as Engine
from .engines import Reference as Reference
from .engines import engine as engine
from .engines import engine_names as engine_names
from .engines import register_engine as register_engine
from .engines import run as run
from .engines import strip_annotations as strip_annotations
from .engines.threads import ThreadsEngine as ThreadsEngine
from .engines.virtual import VirtualEngine as VirtualEngine
from .program import CollectiveCount as CollectiveCount
from .program import EntryFunction as EntryFunction
from .program import Port as Port
from .program import ShardedArray as ShardedArray
from .program import Stored as Stored
from .program import bind_inputs as bind_inputs
from .program import compile_entry as compile_entry
from .program import entries as entries
from .program import gather_outputs as gather_outputs
from .program import launched as launched
from .program import measure as measure
from .program import plan_storage as plan_storage
