// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0

#include "simulate/meeting.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <set>
#include <utility>

#include "simulate/fair.h"

namespace tvm_distir {
namespace simulate {
namespace {

constexpr int64_t kExact = int64_t{1} << 53;  // times up to which a double is exact

// An activity under way: its clock shows how late it would be at full speed.
struct Active {
  int64_t number;
  double origin, clock;
  std::vector<std::pair<int64_t, int64_t>> later;  // ends and tokens, the last first
  int64_t piece;
  double speed;
  int64_t at;  // next event
};

class Meeting {
 public:
  Meeting(const Activities& activities, const Loads& loads)
      : a_(activities), loads_(loads), fair_(loads.capacity) {
    const int64_t count = static_cast<int64_t>(a_.kind.size());
    met_.time.assign(a_.out_begin.back(), kNever);
    missing_.assign(count, 0);
    Ints sizes(met_.time.size() + 1, 0);
    for (const int64_t token : a_.ins) ++sizes.at(token + 1);
    reader_begin_ = sizes;
    for (size_t t = 1; t < reader_begin_.size(); ++t) reader_begin_[t] += reader_begin_[t - 1];
    Ints next(reader_begin_.begin(), reader_begin_.end() - 1);
    readers_.resize(a_.ins.size());
    for (int64_t n = 0; n < count; ++n) {
      missing_[n] = a_.in_begin.at(n + 1) - a_.in_begin[n];
      for (int64_t k = a_.in_begin[n]; k < a_.in_begin[n + 1]; ++k) {
        readers_[next[a_.ins[k]]++] = n;
      }
    }
  }

  Met Go() {
    for (size_t n = 0; n < missing_.size(); ++n) {
      if (missing_[n] == 0) ready_.push_back(static_cast<int64_t>(n));
    }
    Come(0, kNever);
    Come(1, 0);
    bool changed = true;
    while (true) {
      while (!ready_.empty()) {
        const int64_t number = ready_.front();
        ready_.pop_front();
        changed = Begin(number) || changed;
      }
      if (active_.empty()) return std::move(met_);
      if (changed) Hasten();
      changed = Advance();
    }
  }

 private:
  void Come(int64_t token, int64_t time) {
    met_.time[token] = time;
    for (int64_t k = reader_begin_[token]; k < reader_begin_[token + 1]; ++k) {
      if (--missing_[readers_[k]] == 0) ready_.push_back(readers_[k]);
    }
  }

  // Begins an activity; whether it takes any more time.
  bool Begin(int64_t number) {
    times_.clear();
    for (int64_t k = a_.in_begin[number]; k < a_.in_begin[number + 1]; ++k) {
      times_.push_back(met_.time[a_.ins[k]]);
    }
    const int64_t kind = a_.kind[number], token = a_.out_begin[number];
    const int64_t outs = a_.out_begin[number + 1] - token;
    int64_t origin = now_;
    ends_.clear();
    if (kind == kJoin || kind == kFlow) {
      const int64_t last = *std::max_element(times_.begin(), times_.end());
      if (kind == kJoin) {
        Come(token, last);
        return false;
      }
      origin = last;
      ends_.push_back(Bounded(last + a_.spent[number]));
    } else {
      const int64_t ports = static_cast<int64_t>(times_.size());
      if (ports != a_.matrix_ports.at(kind) ||
          a_.matrix_begin[kind] + outs * ports > static_cast<int64_t>(a_.matrix.size())) {
        TVM_FFI_THROW(ValueError) << "activity " << number << " does not fit its map";
      }
      const int64_t* row = &a_.matrix[a_.matrix_begin[kind]];
      for (int64_t k = 0; k < outs; ++k, row += ports) {
        ends_.push_back(Bounded(Functions::Dot(row, times_.data(), ports)));
      }
    }
    Active one{number, static_cast<double>(origin), static_cast<double>(now_), {}, 0, 1.0, 0};
    for (size_t k = 0; k < ends_.size(); ++k) {
      if (ends_[k] <= now_) {
        Come(token + k, ends_[k]);
      } else {
        one.later.emplace_back(ends_[k], token + k);
      }
    }
    if (one.later.empty()) return false;
    std::sort(one.later.begin(), one.later.end(), std::greater<>());
    one.piece = loads_.piece_begin.at(a_.group[number]);
    Turn(&one);
    active_.push_back(std::move(one));
    return true;
  }

  // Takes the piece of this moment; whether it is another one.
  bool Turn(Active* one) const {
    const int64_t before = one->piece;
    while (one->origin + loads_.until.at(one->piece) <= one->clock) ++one->piece;
    return one->piece != before;
  }

  int64_t LoadCount(const Active& one) const {
    return loads_.load_begin[one.piece + 1] - loads_.load_begin[one.piece];
  }

  // Gives all activities the speeds of this moment.
  void Hasten() {
    slowed_.clear();
    for (const Active& one : active_) {
      if (a_.kind[one.number] != kFlow || LoadCount(one) == 0) continue;
      const int64_t* ranks = &loads_.slows[2 * a_.group[one.number]];
      slowed_.insert(ranks, ranks + 2);
    }
    demands_.clear();
    most_.clear();
    for (const Active& one : active_) {
      double speed = loads_.speed[one.piece];
      if (a_.kind[one.number] != kFlow && slowed_.count(a_.rank[one.number])) {
        speed = std::min(speed, loads_.beside);
      }
      most_.push_back(speed);
      const int64_t first = loads_.load_begin[one.piece], count = LoadCount(one);
      if (count > 0) {
        demands_.push_back({speed, &loads_.link[first], &loads_.load[first], count, speed});
      }
    }
    fair_.Share(&demands_);
    size_t next = 0;
    for (size_t k = 0; k < active_.size(); ++k) {
      Active& one = active_[k];
      const double speed = LoadCount(one) > 0 ? demands_[next++].speed : most_[k];
      if (speed != one.speed && a_.kind[one.number] != kFlow) Note(one);
      one.speed = speed;
    }
  }

  void Note(const Active& one) {
    met_.clock.push_back(one.number);
    met_.clock.push_back(static_cast<int64_t>(std::floor(one.clock + 0.5)));
    met_.clock.push_back(now_);
  }

  // What the clock shows at the next event.
  double Goal(const Active& one) const {
    return std::min(static_cast<double>(one.later.back().first),
                    one.origin + loads_.until[one.piece]);
  }

  // Goes on to the next event; whether speeds may change.
  bool Advance() {
    int64_t now = kLatest;
    for (Active& one : active_) {
      const double spent = std::floor((Goal(one) - one.clock) / one.speed + 0.5);
      one.at = spent < static_cast<double>(kExact) ? now_ + static_cast<int64_t>(spent) : kLatest;
      now = std::min(now, one.at);
    }
    if (now > kExact) TVM_FFI_THROW(OverflowError) << "a time is too long";
    const double spent = static_cast<double>(now - now_);
    now_ = now;
    bool changed = false;
    for (Active& one : active_) {
      if (one.at > now) {
        one.clock += one.speed * spent;
        continue;
      }
      one.clock = Goal(one);
      while (!one.later.empty() && static_cast<double>(one.later.back().first) <= one.clock) {
        const int64_t token = one.later.back().second;
        one.later.pop_back();
        Come(token, now);
      }
      if (Turn(&one) || one.later.empty()) changed = true;
      if (one.later.empty() && one.speed != 1.0 && a_.kind[one.number] != kFlow) Note(one);
    }
    active_.erase(std::remove_if(active_.begin(), active_.end(),
                                 [](const Active& one) { return one.later.empty(); }),
                  active_.end());
    return changed;
  }

  static int64_t Bounded(int64_t time) {
    if (time > kLatest) TVM_FFI_THROW(OverflowError) << "a time is too long";
    return time;
  }

  const Activities& a_;
  const Loads& loads_;
  Fair fair_;
  Met met_;
  Ints missing_, reader_begin_, readers_, times_, ends_;
  std::deque<int64_t> ready_;
  std::vector<Active> active_;
  std::set<int64_t> slowed_;
  std::vector<Demand> demands_;
  Floats most_;
  int64_t now_ = 0;
};

}  // namespace

Met Meet(const Activities& activities, const Loads& loads) {
  return Meeting(activities, loads).Go();
}

}  // namespace simulate
}  // namespace tvm_distir
