# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .checkpoint import open_weights as open_weights
from .loading import Deployment as Deployment
from .loading import load as load
from .writing import deploy as deploy
from .writing import replaceable as replaceable
