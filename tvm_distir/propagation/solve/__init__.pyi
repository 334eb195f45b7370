# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .alternatives import Alternative as Alternative
from .alternatives import Alternatives as Alternatives
from .alternatives import Forms as Forms
from .alternatives import factor_fits as factor_fits
from .alternatives import fits as fits
from .assembly import hold_on as hold_on
from .boundary import labels_on as labels_on
from .builder import Builder as Builder
from .conversions import Form as Form
from .conversions import Route as Route
from .cost import Conversions as Conversions
from .cost import Costs as Costs
from .cost import conversion_kind as conversion_kind
from .cost import sent_inside as sent_inside
from .exact import Solution as Solution
from .exact import Starts as Starts
from .exact import minimise as minimise
from .ilp import integer_optimum as integer_optimum
from .kept import give_back as give_back
from .kept import take as take
from .problem import AxisProblem as AxisProblem
from .problem import AxisSummary as AxisSummary
from .problem import LabellingProblem as LabellingProblem
from .problem import Summary as Summary
from .tables import PriceTables as PriceTables
