# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .calibration.calibrate import calibrate as calibrate
from .plan_export.plan_formats import PLAN_FORMATS as PLAN_FORMATS
from .plan_export.plan_formats import export_plan as export_plan
from .search.candidates import Constraints as Constraints
from .search.result import CandidateRow as CandidateRow
from .search.result import SearchResult as SearchResult
from .search.trials import StrategyMaker as StrategyMaker
from .strategies.composition import make_plan as make_plan
from .strategies.registry import find_strategy as find_strategy
from .strategies.registry import parse as parse
from .strategies.registry import strategy_names as strategy_names
from .study import Study as Study
from .sweep.sweep_driver import sweep as sweep
