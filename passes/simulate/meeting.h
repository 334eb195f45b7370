// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Units and messages as activities that wait for each other and share links.
//
// An activity begins when all its tokens have come. Where links are full, speeds are max-min fair,
// and found anew whenever an activity begins, ends, or goes on to a piece with other loads. The
// same sums in the same order as in python/tests/performance/native/meeting_reference.py.

#ifndef TVM_DISTIR_PASSES_SIMULATE_MEETING_H_
#define TVM_DISTIR_PASSES_SIMULATE_MEETING_H_

#include <cstdint>
#include <vector>

#include "simulate/functions.h"

namespace tvm_distir {
namespace simulate {

using Floats = std::vector<double>;

constexpr int64_t kFlow = -1;  // instead of a map: a message
constexpr int64_t kJoin = -2;  // ... what is there when all its tokens are

// See tvm_distir/performance/event_loop/activities.py.
struct Activities {
  Ints matrix, matrix_begin, matrix_ports;
  Ints kind, group, rank, spent;
  Ints in_begin, ins, out_begin;
};

struct Loads {
  Floats capacity;
  Ints piece_begin;
  Floats until, speed;
  Ints load_begin, link;
  Floats load;
  Ints slows;
  double beside;
};

struct Met {
  Ints time;   // of the tokens
  Ints clock;  // rows of activity, time at full speed, time: where the speed of a unit changes
};

Met Meet(const Activities& activities, const Loads& loads);

}  // namespace simulate
}  // namespace tvm_distir

#endif  // TVM_DISTIR_PASSES_SIMULATE_MEETING_H_
