// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// How long a rank computes, communicates, and does both at once.

#ifndef TVM_DISTIR_PASSES_SIMULATE_BUSY_H_
#define TVM_DISTIR_PASSES_SIMULATE_BUSY_H_

#include <cstdint>

#include "simulate/functions.h"

namespace tvm_distir {
namespace simulate {

struct Busy {
  int64_t compute, comm, both;
};

// Of runs of functions (`times` has those of the ports of each in turn), and of further intervals:
// `computing` and `talking` alternate between start and end.
Busy MeasureBusy(Functions* functions, const Ints& runs, const Ints& times, const Ints& computing,
                 const Ints& talking);

}  // namespace simulate
}  // namespace tvm_distir

#endif  // TVM_DISTIR_PASSES_SIMULATE_BUSY_H_
