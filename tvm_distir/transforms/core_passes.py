# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Re-export the core passes as part of the public names of :mod:`tvm_distir.transforms`."""

from __future__ import annotations

from tvm_distir.core.passes import AnnotateSharding as AnnotateSharding
from tvm_distir.core.passes import LegalizeRedistribute as LegalizeRedistribute
from tvm_distir.core.passes import LowerDistIR as LowerDistIR
from tvm_distir.core.passes import PassInfo as PassInfo
from tvm_distir.core.passes import PropagateSharding as PropagateSharding
from tvm_distir.core.passes import Rewrite as Rewrite
from tvm_distir.core.passes import module_pass as module_pass
