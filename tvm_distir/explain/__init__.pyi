# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .explainer import explain as explain
from .explanation import Explanation as Explanation
from .findings import AxisReason as AxisReason
from .findings import ChainStep as ChainStep
from .findings import Dim as Dim
from .findings import Move as Move
from .findings import OtherPlacement as OtherPlacement
from .picture import HeldShard as HeldShard
from .picture import parts as parts
from .picture import picture as picture
