# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .annotations import is_annotation as is_annotation
from .graph import ALONE as ALONE
from .graph import CONST as CONST
from .graph import LAYOUT_OPS as LAYOUT_OPS
from .graph import Axis as Axis
from .graph import Graph as Graph
from .graph import Link as Link
from .graph import Node as Node
from .graph import PinLabels as PinLabels
from .graph import Uses as Uses
from .graph import divisible as divisible
from .meshes import Placer as Placer
from .packed import PACKED_HANDLES as PACKED_HANDLES
from .packed import distributed_name as distributed_name
from .types import ModuleTypes as ModuleTypes
