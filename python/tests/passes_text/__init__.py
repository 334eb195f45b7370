# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""One example per pass: a module before it and the module after it, as TVMScript."""
