// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0

#include "simulate/tape.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <utility>

#include "simulate/functions.h"

namespace tvm_distir {
namespace simulate {
namespace {

constexpr int64_t kLanes = 8;
// Behind all times that fit; sums of two fit in 64 bits.
constexpr int64_t kTooLate = kLatest + 1;
constexpr size_t kMostSteps = size_t{1} << 27;
// So many steps are looked at to see that one time is behind another.
constexpr int kLook = 32;

// Loops over lanes are compiled for the vectors of newer machines too, which are looked for as the
// library is loaded, where compiler and system know how.
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define TVM_DISTIR_FOR_VECTORS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define TVM_DISTIR_FOR_VECTORS
#endif

}  // namespace

TVM_DISTIR_FOR_VECTORS
void Tape::PlayAll(const std::vector<Move>& moves, int64_t* times) {
  for (const Move& move : moves) {
    const int64_t* a = &times[move.a * kLanes];
    const int64_t* b = &times[move.b * kLanes];
    int64_t found[kLanes];
    if (move.sum) {
      for (int64_t k = 0; k < kLanes; ++k) found[k] = std::min(a[k] + b[k], kTooLate);
    } else {
      for (int64_t k = 0; k < kLanes; ++k) found[k] = std::max(a[k], b[k]);
    }
    std::copy_n(found, kLanes, &times[move.to * kLanes]);
  }
}

Tape::Tape(int64_t inputs) : inputs_(inputs) {
  Add(kConstant, 0, 0);
  constants_.push_back(0);
  constant_at_[0] = kBegin;
  for (int64_t k = 0; k < inputs; ++k) Add(kInput, static_cast<Time>(k), 0);
}

Tape::Time Tape::Add(Kind kind, Time a, Time b) {
  if (steps_.size() >= kMostSteps) TVM_FFI_THROW(OverflowError) << "a step has too many units";
  steps_.push_back({kind, a, b});
  return static_cast<Time>(steps_.size()) - 1;
}

Tape::Time Tape::Constant(int64_t time) {
  const auto known = constant_at_.find(time);
  if (known != constant_at_.end()) return known->second;
  constants_.push_back(time);
  return constant_at_[time] = Add(kConstant, static_cast<Time>(constants_.size()) - 1, 0);
}

bool Tape::Reaches(Time later, Time earlier) const {
  for (int look = 0; look < kLook && later > earlier; ++look) {
    const Step& step = steps_[later];
    if (step.kind == kInput || step.kind == kConstant) return false;
    later = step.kind == kSum ? step.a : std::max(step.a, step.b);
  }
  return later == earlier;
}

Tape::Time Tape::Latest(Time a, Time b) {
  if (a == b || b == kNone || (b == kBegin && a != kNone)) return a;
  if (a == kNone || a == kBegin) return b;
  const auto [low, high] = std::minmax(a, b);
  return Reaches(high, low) ? high : Add(kMax, low, high);
}

Tape::Time Tape::After(Time time, Time by) {
  if (time == kNone || by == kBegin) return time;
  if (by == kNone) return kNone;
  return time == kBegin ? by : Add(kSum, time, by);
}

void Tape::Finish(Time end) {
  const Time count = static_cast<Time>(steps_.size());
  std::vector<Time> last(count, kNone);  // the step that needs a time last
  last[end] = count;
  for (Time k = end; k >= 0; --k) {
    const Step& step = steps_[k];
    if (last[k] == kNone || step.kind == kInput || step.kind == kConstant) continue;
    last[step.a] = std::max(last[step.a], k);
    last[step.b] = std::max(last[step.b], k);
  }
  std::vector<int32_t> place(count, -1), free;
  const auto take = [&](Time k) {
    if (free.empty()) {
      place[k] = places_++;
    } else {
      place[k] = free.back();
      free.pop_back();
    }
    return place[k];
  };
  for (Time k = 0; k <= end; ++k) {
    const Step& step = steps_[k];
    if (last[k] == kNone) continue;
    if (step.kind == kInput) loads_.emplace_back(take(k), step.a);
    if (step.kind == kConstant) sets_.emplace_back(take(k), constants_[step.a]);
  }
  const int32_t kept = places_;  // those of inputs and constants stay
  for (Time k = 0; k <= end; ++k) {
    const Step& step = steps_[k];
    if (last[k] == kNone || step.kind == kInput || step.kind == kConstant) continue;
    const int32_t a = place[step.a], b = place[step.b];
    if (last[step.a] == k && a >= kept) free.push_back(a);
    if (last[step.b] == k && b >= kept && b != a) free.push_back(b);
    moves_.push_back({take(k), a, b, step.kind == kSum});
  }
  end_ = place[end];
  steps_ = {};
}

void Tape::Play(const std::vector<const int64_t*>& inputs, int64_t rows, int64_t* out) const {
  std::vector<int64_t> times(places_ * kLanes);
  for (const auto& [place, time] : sets_) {
    std::fill_n(&times[place * kLanes], kLanes, std::min(time, kTooLate));
  }
  for (int64_t row = 0; row < rows; row += kLanes) {
    const int64_t count = std::min(kLanes, rows - row);
    for (const auto& [place, input] : loads_) {
      int64_t* to = &times[place * kLanes];
      for (int64_t k = 0; k < count; ++k) to[k] = std::min(inputs[input][row + k], kTooLate);
    }
    PlayAll(moves_, times.data());
    const int64_t* end = &times[end_ * kLanes];
    for (int64_t k = 0; k < count; ++k) out[row + k] = end[k] > kLatest ? -1 : end[k];
  }
}

}  // namespace simulate
}  // namespace tvm_distir
