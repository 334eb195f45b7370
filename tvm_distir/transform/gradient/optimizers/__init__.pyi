# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .master import Master as Master
from .protocol import RATE as RATE
from .protocol import STEP as STEP
from .protocol import Optimizer as Optimizer
from .protocol import Shared as Shared
from .protocol import by_rate as by_rate
from .protocol import cast as cast
from .registry import optimizer_named as optimizer_named
from .registry import optimizer_names as optimizer_names
from .registry import read_optimizer as read_optimizer
