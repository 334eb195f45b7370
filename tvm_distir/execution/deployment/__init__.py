# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Deploy distributed programs to folders of compiled libraries and sharded weights.

Loading and running need TVM's runtime only. The names below load their modules when they are
first used.
"""

from __future__ import annotations
