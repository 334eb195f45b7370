// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Which ports of a function matter, so that runs alike are found alike.

#ifndef TVM_DISTIR_PASSES_SIMULATE_SLACKS_H_
#define TVM_DISTIR_PASSES_SIMULATE_SLACKS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "simulate/functions.h"

namespace tvm_distir {
namespace simulate {

// Per function and port how much later than the compute stream the port may be without deciding
// any start, so that its time need not be looked at; -kLatest: it always matters.
class Slacks {
 public:
  explicit Slacks(const Functions& functions) : functions_(functions), known_(functions.size()) {}

  const Ints& Of(int64_t id) {
    Ints& found = known_[id];
    if (!found.empty()) return found;
    const Function& f = functions_.at(id);
    found.assign(f.ports, kLatest);
    for (size_t o = 0; o < f.ops.size(); ++o) {
      const int64_t* rows = &f.summary.starts[f.summary.row_at[o]];
      if (f.ops[o].callee < 0) {
        Narrow(f.ports, rows, rows, -kLatest, &found);
        continue;
      }
      const Ints& inner = Of(f.ops[o].callee);
      for (size_t q = 0; q < inner.size(); ++q) {
        // A port of a callee does not matter where it is no later than this.
        const int64_t least = q == kCompute ? -kLatest : inner[q];
        Narrow(f.ports, rows + q * f.ports, rows + kCompute * f.ports, least, &found);
      }
    }
    return found;
  }

 private:
  // Lowers what is found, so that no port decides a row: another one is no earlier than
  // `compute`, and those up to `least` behind that do not matter.
  static void Narrow(int64_t ports, const int64_t* row, const int64_t* compute, int64_t least,
                     Ints* found) {
    int64_t bound = -kLatest;
    if (row[kCompute] > kNever) bound = row[kCompute];
    if (least > -kLatest && compute[kCompute] > kNever) {
      bound = std::max(bound, std::min(compute[kCompute] + least, kLatest));
    }
    for (int64_t p = 0; p < ports; ++p) {
      if (p == kCompute || row[p] <= kNever) continue;
      (*found)[p] = std::min((*found)[p], bound > -kLatest ? bound - row[p] : -kLatest);
    }
  }

  const Functions& functions_;
  std::vector<Ints> known_;
};

}  // namespace simulate
}  // namespace tvm_distir

#endif  // TVM_DISTIR_PASSES_SIMULATE_SLACKS_H_
