// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0

#include "simulate/units.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <utility>

namespace tvm_distir {
namespace simulate {
namespace {

constexpr int64_t kRankStreams = 6;
constexpr int64_t kNotSent = -1;

// A kind of unit: its map, and where its operands lie.
struct Kind {
  const Function* function;
  Ints in_place, in_stride;    // per port behind the streams
  Ints out_row, out_place, out_stride;  // per result that is kept its row of the map
};

class Run {
 public:
  Run(Functions* functions, const Units& units) : units_(units) {
    int64_t at = 0;
    auto take = [&]() {
      if (at >= static_cast<int64_t>(units.kind_places.size())) {
        TVM_FFI_THROW(ValueError) << "the places of units are too few";
      }
      return units.kind_places[at++];
    };
    for (const int64_t id : units.kind_function) {
      Kind kind{&functions->Summarised(id), {}, {}, {}, {}, {}};
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
      kinds_.push_back(std::move(kind));
    }
    const int64_t ranks = static_cast<int64_t>(units.program_begin.size()) - 1;
    cells_.assign(units.cells, kNever);
    ran_.finish.assign(ranks * kRankStreams, 0);
    ran_.sent.assign(units.edges.size() / 2 * units.micros, kNotSent);
    ran_.position.assign(ranks, 0);
    step_.assign(ranks, 0);
    offset_.assign(ranks, 0);
    Offsets();
  }

  Ran Go() {
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
    ran_.times.assign(total, 0);
  }

  int64_t& Cell(int64_t cell, int64_t stride, int64_t micro) {
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
    int64_t* streams = &ran_.finish[rank * kRankStreams];
    switch (step[0]) {
      case kRun:
        RunUnit(rank, kinds_.at(step[1]), step[2], micro);
        return true;
      case kCopy:
        Cell(step[3], step[4], micro) = Cell(step[1], step[2], micro);
        return true;
      case kSend: {
        const int64_t to = units_.edges.at(2 * step[1]);
        int64_t& stream = streams[StreamOf(step[4])];
        const int64_t start = std::max(stream, Cell(step[2], step[3], micro));
        stream = Bounded(start + units_.edges.at(2 * step[1] + 1));
        ran_.sent.at(step[1] * units_.micros + micro) = start;
        woken_.push_back(to);
        return true;
      }
      case kRecv: {
        const int64_t start = ran_.sent.at(step[1] * units_.micros + micro);
        if (start == kNotSent) return false;
        Cell(step[2], step[3], micro) = start + units_.edges.at(2 * step[1] + 1);
        return true;
      }
      case kMark:
        Cell(step[2], step[3], micro) = streams[StreamOf(step[1])];
        return true;
      case kWait: {
        int64_t& stream = streams[StreamOf(step[1])];
        stream = std::max(stream, Cell(step[2], step[3], micro));
        return true;
      }
      default:
        TVM_FFI_THROW(ValueError) << "there is no step " << step[0];
    }
    return false;
  }

  void RunUnit(int64_t rank, const Kind& kind, int64_t base, int64_t micro) {
    const Function& f = *kind.function;
    int64_t* streams = &ran_.finish[rank * kRankStreams];
    int64_t* times = ran_.times.data() + offset_[rank];
    offset_[rank] += f.ports;
    std::copy_n(streams, kStreams, times);
    for (size_t k = 0; k < kind.in_place.size(); ++k) {
      times[kStreams + k] = Cell(base + kind.in_place[k], kind.in_stride[k], micro);
    }
    const int64_t* row = f.map.data();
    for (int64_t s = 0; s < kStreams; ++s, row += f.ports) {
      streams[s] = Bounded(Functions::Dot(row, times, f.ports));
    }
    for (size_t r = 0; r < kind.out_place.size(); ++r) {
      row = &f.map[kind.out_row[r] * f.ports];
      Cell(base + kind.out_place[r], kind.out_stride[r], micro) =
          Bounded(Functions::Dot(row, times, f.ports));
    }
  }

  static int64_t StreamOf(int64_t number) {
    if (number < 0 || number >= kRankStreams) {
      TVM_FFI_THROW(ValueError) << "there is no stream " << number;
    }
    return number;
  }

  static int64_t Bounded(int64_t time) {
    if (time > kLatest) TVM_FFI_THROW(OverflowError) << "a time is too long";
    return time;
  }

  const Units& units_;
  std::vector<Kind> kinds_;
  Ints cells_, step_, offset_, woken_;
  Ran ran_;
};

}  // namespace

Ran RunUnits(Functions* functions, const Units& units) { return Run(functions, units).Go(); }

int64_t EndOf(Functions* functions, const Units& units) {
  try {
    const Ran ran = RunUnits(functions, units);
    for (size_t r = 0; r < ran.position.size(); ++r) {
      if (ran.position[r] < units.program_begin[r + 1] - units.program_begin[r]) return -1;
    }
    return ran.finish.empty() ? 0 : *std::max_element(ran.finish.begin(), ran.finish.end());
  } catch (const tvm::ffi::Error& error) {
    if (error.kind() != "OverflowError") throw;
    return -1;
  }
}

}  // namespace simulate
}  // namespace tvm_distir
