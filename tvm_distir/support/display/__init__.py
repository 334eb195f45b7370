# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Show results as tables of text, HTML and pandas, and as figures of matplotlib."""
