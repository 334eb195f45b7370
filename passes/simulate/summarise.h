// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Makes maps of functions, for times that are numbers and for times that are yet to come.

#ifndef TVM_DISTIR_PASSES_SIMULATE_SUMMARISE_H_
#define TVM_DISTIR_PASSES_SIMULATE_SUMMARISE_H_

#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "simulate/functions.h"
#include "simulate/units.h"

namespace tvm_distir {
namespace simulate {

// Times as numbers. Another kind has the same members.
struct Exact {
  using Time = int64_t;
  static constexpr Time kNone = kNever;   // of what is there all along
  static constexpr Time kUnsent = -1;     // of a message that has not left
  static constexpr Time kBegin = 0;
  static constexpr bool kKeepsTimes = true;  // of the ports of each run of a unit
  static bool IsNone(Time time) { return time <= kNever; }
  static bool IsUnsent(Time time) { return time == kUnsent; }

  Time Duration(const Op& op) const { return op.duration; }
  Time Issue(const Op& op) const { return op.issue; }
  Time Spent(const Units& units, int64_t edge) const { return units.edges.at(2 * edge + 1); }
  Time Latest(Time a, Time b) const { return std::max(a, b); }
  Time After(Time time, Time by) const {
    return IsNone(time) ? kNever : Bounded(time + std::min(by, kLatest + 1));
  }
  // Maximum over the ports of an entry plus a time.
  Time Dot(const Time* row, const Time* times, int64_t ports) const {
    return Bounded(Functions::Dot(row, times, ports));
  }
  static Time Bounded(Time time) {
    if (time > kLatest) TVM_FFI_THROW(OverflowError) << "a time is too long";
    return time;
  }
};

// The map of a function; `inner` gives those of its callees by their numbers.
template <class Algebra, class Inner>
Summary<typename Algebra::Time> Summarise(Algebra* algebra, const Functions& functions,
                                          const Function& f, const Inner& inner) {
  using Time = typename Algebra::Time;
  const int64_t ports = f.ports;
  Summary<Time> found;
  std::vector<Time> value(f.values * ports, Algebra::kNone), row(ports);
  std::vector<Time> stream(kStreams * ports, Algebra::kNone);
  std::vector<char> timed(f.values, false);
  for (int64_t s = 0; s < kStreams; ++s) stream[s * ports + s] = Algebra::kBegin;
  for (int64_t p = 0; p < f.params; ++p) {
    if (f.port_of[p] < 0) continue;
    value[p * ports + f.port_of[p]] = Algebra::kBegin;
    timed[p] = true;
  }
  auto latest = [&](const Time* other) {
    for (int64_t p = 0; p < ports; ++p) row[p] = algebra->Latest(row[p], other[p]);
  };
  auto shift = [&](Time by) {
    for (int64_t p = 0; p < ports; ++p) row[p] = algebra->After(row[p], by);
  };
  auto set = [&](int64_t s) { std::copy(row.begin(), row.end(), stream.begin() + s * ports); };
  auto keep = [&](int64_t out) {
    if (out < 0) return;
    std::copy(row.begin(), row.end(), value.begin() + out * ports);
    timed[out] = true;
  };
  for (const Op& op : f.ops) {
    found.row_at.push_back(static_cast<int64_t>(found.starts.size()));
    if (op.callee >= 0) {
      const Function& callee = functions.at(op.callee);
      const Summary<Time>& own = inner(op.callee);
      std::vector<Time> given(stream);  // rows of the callee's ports
      given.resize(callee.ports * ports, Algebra::kNone);
      for (int64_t k = 0; k < op.in_count; ++k) {
        if (callee.port_of[k] < 0 || op.ins[k] < 0) continue;
        std::copy_n(value.begin() + op.ins[k] * ports, ports,
                    given.begin() + callee.port_of[k] * ports);
      }
      for (int64_t r = 0; r < kStreams + op.out_count; ++r) {
        row.assign(ports, Algebra::kNone);
        for (int64_t k = 0; k < callee.ports; ++k) {
          const Time by = own.map[r * callee.ports + k];
          if (Algebra::IsNone(by)) continue;
          for (int64_t p = 0; p < ports; ++p) {
            row[p] = algebra->Latest(row[p], algebra->After(given[k * ports + p], by));
          }
        }
        if (r < kStreams) {
          set(r);
        } else {
          keep(op.outs[r - kStreams]);
        }
      }
      found.starts.insert(found.starts.end(), given.begin(), given.end());
      continue;
    }
    row.assign(stream.begin() + kHost * ports, stream.end());
    shift(algebra->Issue(op));
    set(kHost);
    if (!op.apart) latest(&stream[op.stream * ports]);
    if (op.after) latest(&stream[kCompute * ports]);
    for (int64_t k = 0; k < op.in_count; ++k) {
      if (op.ins[k] >= 0 && timed[op.ins[k]]) latest(&value[op.ins[k] * ports]);
    }
    found.starts.insert(found.starts.end(), row.begin(), row.end());
    shift(algebra->Duration(op));
    if (!op.apart) set(op.stream);
    if (op.holds) set(kCompute);
    if (op.sync) set(kHost);
    for (int64_t k = 0; k < op.out_count; ++k) keep(op.outs[k]);
  }
  found.map = std::move(stream);
  found.map.resize((kStreams + f.result_count) * ports, Algebra::kNone);
  for (int64_t r = 0; r < f.result_count; ++r) {
    if (f.results[r] < 0) continue;
    std::copy_n(value.begin() + f.results[r] * ports, ports,
                found.map.begin() + (kStreams + r) * ports);
  }
  return found;
}

}  // namespace simulate
}  // namespace tvm_distir

#endif  // TVM_DISTIR_PASSES_SIMULATE_SUMMARISE_H_
