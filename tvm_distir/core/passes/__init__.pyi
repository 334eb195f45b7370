# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .annotate.kept_rows import keep_rows as keep_rows
from .annotate.passes import AnnotateSharding as AnnotateSharding
from .branches.restore import choices as choices
from .branches.results import branch_results as branch_results
from .branches.results import is_choice as is_choice
from .branches.sink import sink_collectives as sink_collectives
from .cost_model import CostModel as CostModel
from .declaration import PassInfo as PassInfo
from .declaration import Rewrite as Rewrite
from .declaration import info_of as info_of
from .declaration import module_pass as module_pass
from .legalize.call_views import with_call_views as with_call_views
from .legalize.passes import LegalizeRedistribute as LegalizeRedistribute
from .lower.divisible_dims import dim_text as dim_text
from .lower.passes import LowerDistIR as LowerDistIR
from .lower.sharing import described_mesh as described_mesh
from .lower.sharing import port_mesh as port_mesh
from .propagate.passes import ModuleRewriter as ModuleRewriter
from .propagate.passes import PropagateSharding as PropagateSharding
