# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .auto_sharding.decisions import plan_of as plan_of
from .auto_sharding.in_flight import on_stages as on_stages
from .auto_sharding.kernel_costs import StepKernels as StepKernels
from .auto_sharding.kernel_costs import work_of_step as work_of_step
from .auto_sharding.memory_bound import TooLargeError as TooLargeError
from .auto_sharding.mesh_costs import MeshPriceCache as MeshPriceCache
from .auto_sharding.mesh_costs import MeshPrices as MeshPrices
from .auto_sharding.mesh_costs import shard_bytes as shard_bytes
from .auto_sharding.sharding_problem import ShardingProblem as ShardingProblem
from .auto_sharding.solver import WIDTH as WIDTH
from .auto_sharding.solver import Labeller as Labeller
from .cost_weights import costs_for as costs_for
from .cost_weights import main_dtype as main_dtype
from .systems.clock import PICOSECONDS as PICOSECONDS
from .systems.clock import Clock as Clock
from .systems.clock import picoseconds as picoseconds
from .systems.constants import LINKS as LINKS
from .systems.constants import MEANINGS as MEANINGS
from .systems.constants import Constant as Constant
from .systems.expert_kernels import EXPERTS as EXPERTS
from .systems.expert_kernels import SERVED_CAPACITY as SERVED_CAPACITY
from .systems.kernel_tables import KernelSizes as KernelSizes
from .systems.network import GroupLayout as GroupLayout
from .systems.network import GroupTopology as GroupTopology
from .systems.network import pair_up as pair_up
from .systems.offered import PROFILES as PROFILES
from .systems.offered import offered as offered
from .systems.offered import offered_names as offered_names
from .systems.provenance import SourcedNumber as SourcedNumber
from .systems.provenance import StepUse as StepUse
from .systems.provenance import sourced_numbers as sourced_numbers
from .systems.system import System as System
from .systems.system_reader import system_aliases as system_aliases
from .systems.system_reader import system_names as system_names
from .systems.system_writer import to_data as to_data
