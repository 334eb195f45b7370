# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .calibration.calibrate import calibrate as calibrate
from .plan_export.plan_formats import PLAN_FORMATS as PLAN_FORMATS
from .plan_export.plan_formats import export_plan as export_plan
from .search.constraints import Constraints as Constraints
from .search.result import CandidateRow as CandidateRow
from .search.result import SearchResult as SearchResult
from .search.strategy_maker import StrategyMaker as StrategyMaker
from .serving.batching import SchedulerOptions as SchedulerOptions
from .serving.batching import Speculation as Speculation
from .serving.batching import StepTimes as StepTimes
from .serving.levels import ServiceLevels as ServiceLevels
from .serving.request_trace import request_trace as request_trace
from .serving.served_model import ServedModel as ServedModel
from .serving.serving_choices import ServingSearchResult as ServingSearchResult
from .serving.serving_report import ServingReport as ServingReport
from .serving.serving_report import serve_analyze as serve_analyze
from .serving.serving_search import search_serving as search_serving
from .serving.surface import Surface as Surface
from .serving.workload import Workload as Workload
from .stage_memo import ANALYSIS_MEMO as ANALYSIS_MEMO
from .stage_memo import StageMemo as StageMemo
from .step_options import STAGES as STAGES
from .step_options import AnalysisOptions as AnalysisOptions
from .step_options import StepOptions as StepOptions
from .step_options import TrainingOptions as TrainingOptions
from .strategies.composition import compose as compose
from .strategies.composition import make_plan as make_plan
from .strategies.memory_fit import fitted as fitted
from .strategies.registry import find_strategy as find_strategy
from .strategies.registry import parse as parse
from .strategies.registry import strategy_names as strategy_names
from .strategies.training_parts import with_updates as with_updates
from .study import Study as Study
from .sweep.sweep_driver import sweep as sweep
