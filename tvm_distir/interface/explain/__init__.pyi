# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .explainer import explain as explain
from .explanation import Explanation as Explanation
from .picture import picture as picture
