# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .arithmetic import work_of_step as work_of_step
from .decisions import plan_of as plan_of
from .flights import on_stages as on_stages
from .hiding import Hiding as Hiding
from .labeller import WIDTH as WIDTH
from .labeller import Labelled as Labelled
from .labeller import Labeller as Labeller
from .memory import TooLargeError as TooLargeError
from .net import Net as Net
from .prices import MeshPrices as MeshPrices
from .prices import shard_bytes as shard_bytes
