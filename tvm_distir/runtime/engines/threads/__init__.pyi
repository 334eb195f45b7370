# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .engine import TIMEOUT_S as TIMEOUT_S
from .engine import ThreadsEngine as ThreadsEngine
from .engine import one_thread_each as one_thread_each
from .plain import PlainEngine as PlainEngine
