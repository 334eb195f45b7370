# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .engines.mpi.engine import MpiEngine as MpiEngine
from .engines.reference import Reference as Reference
from .engines.registry import engine as engine
from .engines.registry import run as run
from .engines.threads.engine import ThreadsEngine as ThreadsEngine
from .engines.torch.engine import TorchEngine as TorchEngine
from .engines.virtual.engine import VirtualEngine as VirtualEngine
from .program.device_objects import DeviceObjects as DeviceObjects
from .program.dist_io import entries as entries
from .program.planning import plan_storage as plan_storage
from .program.sharded import ShardedArray as ShardedArray
from .program.timing import measure as measure
