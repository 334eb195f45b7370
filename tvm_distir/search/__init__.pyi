# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .labelling import Labelling as Labelling
from .labelling import label as label
