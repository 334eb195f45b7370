// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Runs units on ranks, for times that are numbers and for times that are yet to come.

#ifndef TVM_DISTIR_PASSES_SIMULATE_RUN_H_
#define TVM_DISTIR_PASSES_SIMULATE_RUN_H_

#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "simulate/functions.h"
#include "simulate/units.h"

namespace tvm_distir {
namespace simulate {

// A kind of unit: its map, and where its operands lie.
template <class Time>
struct Kind {
  const Function* function;
  const std::vector<Time>* map;
  Ints in_place, in_stride;    // per port behind the streams
  Ints out_row, out_place, out_stride;  // per result that is kept its row of the map
};

// Runs all ranks as early as possible; `summary` gives the maps of functions by their numbers.
template <class Algebra>
class Run {
 public:
  using Time = typename Algebra::Time;

  template <class Summaries>
  Run(Algebra* algebra, const Functions& functions, const Summaries& summary, const Units& units)
      : algebra_(algebra), units_(units) {
    int64_t at = 0, most = 0;
    auto take = [&]() {
      if (at >= static_cast<int64_t>(units.kind_places.size())) {
        TVM_FFI_THROW(ValueError) << "the places of units are too few";
      }
      return units.kind_places[at++];
    };
    for (const int64_t id : units.kind_function) {
      const std::vector<Time>* map = &summary(id).map;
      Kind<Time> kind{&functions.at(id), map, {}, {}, {}, {}, {}};
      for (int64_t p = 0; p < kind.function->params; ++p) {
        const int64_t place = take(), stride = take();
        if (kind.function->port_of[p] < 0) continue;
        kind.in_place.push_back(place);
        kind.in_stride.push_back(stride);
      }
      for (int64_t r = 0; r < kind.function->result_count; ++r) {
        const int64_t place = take(), stride = take();
        if (place < 0) continue;
        kind.out_row.push_back(kStreams + r);
        kind.out_place.push_back(place);
        kind.out_stride.push_back(stride);
      }
      most = std::max(most, kind.function->ports);
      kinds_.push_back(std::move(kind));
    }
    const int64_t ranks = static_cast<int64_t>(units.program_begin.size()) - 1;
    scratch_.resize(most);
    cells_.assign(units.cells, Algebra::kNone);
    ran_.finish.assign(ranks * kRankStreams, Algebra::kBegin);
    ran_.sent.assign(units.edges.size() / 2 * units.micros, Algebra::kUnsent);
    ran_.position.assign(ranks, 0);
    step_.assign(ranks, 0);
    offset_.assign(ranks, 0);
    if (Algebra::kKeepsTimes) Offsets();
  }

  RanOf<Time> Go() {
    const int64_t ranks = static_cast<int64_t>(ran_.position.size());
    std::vector<char> queued(ranks, true);
    Ints ready;
    for (int64_t r = ranks - 1; r >= 0; --r) ready.push_back(r);
    while (!ready.empty()) {
      const int64_t rank = ready.back();
      ready.pop_back();
      queued[rank] = false;
      woken_.clear();
      Advance(rank);
      for (const int64_t other : woken_) {
        if (other != rank && !queued[other]) {
          queued[other] = true;
          ready.push_back(other);
        }
      }
    }
    return std::move(ran_);
  }

 private:
  // Where the times of each rank's runs begin.
  void Offsets() {
    Ints size(units_.template_begin.size() - 1, 0);
    for (size_t t = 0; t < size.size(); ++t) {
      for (int64_t s = units_.template_begin[t]; s < units_.template_begin[t + 1]; ++s) {
        const int64_t* step = &units_.steps[s * kStepColumns];
        if (step[0] == kRun) size[t] += kinds_.at(step[1]).function->ports;
      }
    }
    int64_t total = 0;
    for (size_t r = 0; r < offset_.size(); ++r) {
      offset_[r] = total;
      for (int64_t i = units_.program_begin[r]; i < units_.program_begin[r + 1]; ++i) {
        total += size.at(units_.programs[2 * i]);
      }
    }
    ran_.times.assign(total, Algebra::kBegin);
  }

  Time& Cell(int64_t cell, int64_t stride, int64_t micro) {
    return cells_.at(cell + stride * micro);
  }

  // Goes on until a message is missing, or all is done.
  void Advance(int64_t rank) {
    const int64_t count = units_.program_begin[rank + 1] - units_.program_begin[rank];
    while (ran_.position[rank] < count) {
      const int64_t i = units_.program_begin[rank] + ran_.position[rank];
      const int64_t name = units_.programs[2 * i], micro = units_.programs[2 * i + 1];
      const int64_t begin = units_.template_begin[name];
      const int64_t end = units_.template_begin[name + 1];
      while (begin + step_[rank] < end) {
        if (!Step(rank, &units_.steps[(begin + step_[rank]) * kStepColumns], micro)) return;
        ++step_[rank];
      }
      step_[rank] = 0;
      ++ran_.position[rank];
    }
  }

  bool Step(int64_t rank, const int64_t* step, int64_t micro) {
    Time* streams = &ran_.finish[rank * kRankStreams];
    switch (step[0]) {
      case kRun:
        RunUnit(rank, kinds_.at(step[1]), step[2], micro);
        return true;
      case kCopy:
        Cell(step[3], step[4], micro) = Cell(step[1], step[2], micro);
        return true;
      case kSend: {
        const int64_t to = units_.edges.at(2 * step[1]);
        Time& stream = streams[StreamOf(step[4])];
        const Time start = algebra_->Latest(stream, Cell(step[2], step[3], micro));
        stream = algebra_->After(start, algebra_->Spent(units_, step[1]));
        ran_.sent.at(step[1] * units_.micros + micro) = start;
        woken_.push_back(to);
        return true;
      }
      case kRecv: {
        const Time start = ran_.sent.at(step[1] * units_.micros + micro);
        if (Algebra::IsUnsent(start)) return false;
        Cell(step[2], step[3], micro) = algebra_->After(start, algebra_->Spent(units_, step[1]));
        return true;
      }
      case kMark:
        Cell(step[2], step[3], micro) = streams[StreamOf(step[1])];
        return true;
      case kWait: {
        Time& stream = streams[StreamOf(step[1])];
        stream = algebra_->Latest(stream, Cell(step[2], step[3], micro));
        return true;
      }
      default:
        TVM_FFI_THROW(ValueError) << "there is no step " << step[0];
    }
    return false;
  }

  // Where a rank's next run has the times of its ports.
  Time* Times(int64_t rank, int64_t ports) {
    if (!Algebra::kKeepsTimes) return scratch_.data();
    offset_[rank] += ports;
    return ran_.times.data() + offset_[rank] - ports;
  }

  void RunUnit(int64_t rank, const Kind<Time>& kind, int64_t base, int64_t micro) {
    const Function& f = *kind.function;
    Time* streams = &ran_.finish[rank * kRankStreams];
    Time* times = Times(rank, f.ports);
    std::copy_n(streams, kStreams, times);
    for (size_t k = 0; k < kind.in_place.size(); ++k) {
      times[kStreams + k] = Cell(base + kind.in_place[k], kind.in_stride[k], micro);
    }
    const Time* row = kind.map->data();
    for (int64_t s = 0; s < kStreams; ++s, row += f.ports) {
      streams[s] = algebra_->Dot(row, times, f.ports);
    }
    for (size_t r = 0; r < kind.out_place.size(); ++r) {
      row = kind.map->data() + kind.out_row[r] * f.ports;
      Cell(base + kind.out_place[r], kind.out_stride[r], micro) =
          algebra_->Dot(row, times, f.ports);
    }
  }

  static int64_t StreamOf(int64_t number) {
    if (number < 0 || number >= kRankStreams) {
      TVM_FFI_THROW(ValueError) << "there is no stream " << number;
    }
    return number;
  }

  Algebra* algebra_;
  const Units& units_;
  std::vector<Kind<Time>> kinds_;
  std::vector<Time> cells_, scratch_;
  Ints step_, offset_, woken_;
  RanOf<Time> ran_;
};

}  // namespace simulate
}  // namespace tvm_distir

#endif  // TVM_DISTIR_PASSES_SIMULATE_RUN_H_
