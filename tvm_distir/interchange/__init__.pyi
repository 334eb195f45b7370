# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .stablehlo import FORMS as FORMS
from .stablehlo import to_stablehlo as to_stablehlo
