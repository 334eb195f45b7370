# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Own the names of TVM that differ between its versions, and those that TVM keeps private."""
