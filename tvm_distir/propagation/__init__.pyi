# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .decide import propagate as propagate
from .decision import Decision as Decision
from .decision import Instance as Instance
from .explore import Explorer as Explorer
from .explore import Footprint as Footprint
from .explore import Labels as Labels
from .explore import Pin as Pin
from .explore import Trial as Trial
from .instances import Instances as Instances
from .module import PlacedModule as PlacedModule
from .reach import Reach as Reach
from .reach import Reacher as Reacher
from .solve import Costs as Costs
from .tied import TiedDims as TiedDims
from .tied import tied_dims as tied_dims
from .unify import Unifier as Unifier
from .weights import costs_for as costs_for
from .weights import main_dtype as main_dtype
from .written import called as called
from .written import decision_of_labels as decision_of_labels
from .written import labels_of as labels_of
