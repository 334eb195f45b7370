# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .batch import Batch as Batch
from .costs import HOST as HOST
from .costs import HOSTS as HOSTS
from .critical import PathPart as PathPart
from .critical import critical_path as critical_path
from .lanes import Branch as Branch
from .lanes import CollectiveTotal as CollectiveTotal
from .lanes import DeviceResult as DeviceResult
from .lanes import Event as Event
from .lanes import FunctionTime as FunctionTime
from .lanes import Lane as Lane
from .lanes import OpTime as OpTime
from .memory import Holder as Holder
from .memory import MemoryAccount as MemoryAccount
from .memory import Peaks as Peaks
from .memory import Verdict as Verdict
from .memory import place_number as place_number
from .memory import verdict as verdict
from .result import PipelineResult as PipelineResult
from .result import Result as Result
from .simulator import simulate as simulate
