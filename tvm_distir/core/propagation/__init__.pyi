# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .decide import propagate as propagate
from .decision import Decision as Decision
from .solve.cost import Costs as Costs
