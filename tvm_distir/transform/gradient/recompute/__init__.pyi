# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .attention import keeping_sums as keeping_sums
from .buffers import Body as Body
from .buffers import Buffer as Buffer
from .buffers import Task as Task
from .buffers import leaves as leaves
from .buffers import tree_of as tree_of
from .chain import Link as Link
from .chain import Option as Option
from .chain import Way as Way
from .chain import all_ways as all_ways
from .chain import least_bytes as least_bytes
from .chain import least_time as least_time
from .choice import AUTO as AUTO
from .choice import Auto as Auto
from .choice import read_recompute as read_recompute
from .frontier import Frontier as Frontier
from .live import Live as Live
from .narrow import keeping_narrow as keeping_narrow
from .policies import kept_by as kept_by
from .saving import kept_bytes as kept_bytes
from .saving import type_bytes as type_bytes
from .saving import view_source as view_source
from .times import Times as Times
