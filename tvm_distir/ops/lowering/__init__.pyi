# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .legalizing import kernel_passes as kernel_passes
from .repair import repair_kernels as repair_kernels
