// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Many runs of the same units, whose ops and messages take other times.

#ifndef TVM_DISTIR_PASSES_SIMULATE_RETIMED_H_
#define TVM_DISTIR_PASSES_SIMULATE_RETIMED_H_

#include <cstdint>

#include "simulate/functions.h"
#include "simulate/units.h"

namespace tvm_distir {
namespace simulate {

// Durations of `rows` runs: of ops (columns, rows), of messages (edges, rows).
struct Durations {
  const int64_t* spent;
  const int64_t* sent;
  int64_t rows;
  Ints column;  // by op of the table its row in `spent`, -1: as the table has it
};

// When the last rank of each run is done; -1 where some never are, or a time is too long.
void EndsOf(Functions* functions, const Units& units, const Durations& durations, int64_t* out);

}  // namespace simulate
}  // namespace tvm_distir

#endif  // TVM_DISTIR_PASSES_SIMULATE_RETIMED_H_
