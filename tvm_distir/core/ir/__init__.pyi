# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from . import ops as ops
from .mesh import device_mesh as device_mesh
from .mesh import mesh_axes as mesh_axes
from .placement import P as P
from .placement import R as R
from .placement import placement_text as placement_text
from .types import as_dtensor as as_dtensor
