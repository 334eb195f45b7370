# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .cost_tables import Tables as Tables
from .problem import INFINITE as INFINITE
from .problem import Factors as Factors
from .problem import Problem as Problem
