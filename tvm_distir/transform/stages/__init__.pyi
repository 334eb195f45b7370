# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .body import StageBody as StageBody
from .body import When as When
from .passes import ExpandSchedule as ExpandSchedule
from .passes import RunInTurn as RunInTurn
from .places import Place as Place
from .places import Ports as Ports
from .sums import GoingOn as GoingOn
from .wires import NEXT_STAGE as NEXT_STAGE
from .wires import Wires as Wires
