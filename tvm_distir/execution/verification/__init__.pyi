# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .random_inputs import draw_inputs as draw_inputs
from .verifying import verify as verify
