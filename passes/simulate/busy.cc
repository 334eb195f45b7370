// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0

#include "simulate/busy.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "simulate/intervals.h"
#include "simulate/slacks.h"

namespace tvm_distir {
namespace simulate {
namespace {

// What a run does, in times behind the first of its ports.
struct Profile {
  Measured computing, talking, both;
  int64_t start, end;
};

Profile ProfileOf(const Functions& functions, int64_t id, const int64_t* times) {
  Intervals computing, talking;
  int64_t first = kLatest, last = -kLatest;
  functions.Expand(id, times, [&](const Op& op, int64_t start) {
    if (op.duration <= 0) return;
    Add(op.stream == kCompute ? &computing : &talking, start, start + op.duration);
    first = std::min(first, start);
    last = std::max(last, start + op.duration);
  });
  computing = Union(std::move(computing));
  talking = Union(std::move(talking));
  Intervals both = Common(computing, talking);
  return {Measured(std::move(computing)), Measured(std::move(talking)), Measured(std::move(both)),
          first, last};
}

struct Hash {
  size_t operator()(const Ints& key) const {
    uint64_t found = 0;
    for (const int64_t one : key) found = (found ^ static_cast<uint64_t>(one)) * 0x9E3779B97F4A7C15u;
    return found ^ (found >> 32);
  }
};

// Goes through time once. Where one run is under way alone, what it does is looked up; where runs
// overlap, their intervals are put together.
class Sweep {
 public:
  explicit Sweep(const Ints& messages) : talk_(Union(Pairs(messages))) {
    found_.comm = Length(talk_);
  }

  // The next run in order of their starts; the one behind it begins at `next`.
  void Take(const Profile& profile, int64_t shift, int64_t next) {
    const int64_t begin = profile.start + shift, end = profile.end + shift;
    if (begin >= shared_) Flush();
    const int64_t alone = std::min(std::max(begin, shared_), end);
    const int64_t until = std::max(std::min(end, next), alone);
    Share(profile, begin, alone, shift);
    Alone(profile, alone, until, shift);
    Share(profile, until, end, shift);
    shared_ = std::max(shared_, until < end ? end : alone);
  }

  Busy Done() {
    Flush();
    return found_;
  }

 private:
  void Share(const Profile& profile, int64_t start, int64_t end, int64_t shift) {
    if (end <= start) return;
    profile.computing.Cut(start - shift, end - shift, shift, &computing_);
    profile.talking.Cut(start - shift, end - shift, shift, &talking_);
  }

  void Alone(const Profile& profile, int64_t start, int64_t end, int64_t shift) {
    if (end <= start) return;
    const int64_t from = start - shift, to = end - shift;
    found_.compute += profile.computing.Within(from, to);
    found_.comm += profile.talking.Within(from, to);
    found_.both += profile.both.Within(from, to);
    for (size_t t = Reach(start); t < talk_.size() && talk_[t].first < end; ++t) {
      const int64_t a = std::max(talk_[t].first, start) - shift;
      const int64_t b = std::min(talk_[t].second, end) - shift;
      found_.comm -= profile.talking.Within(a, b);
      found_.both += profile.computing.Within(a, b) - profile.both.Within(a, b);
    }
  }

  // What was put together is over.
  void Flush() {
    if (computing_.empty() && talking_.empty()) return;
    const Intervals computing = Union(std::move(computing_)), own = Union(std::move(talking_));
    computing_.clear();
    talking_.clear();
    Intervals talking = own;
    int64_t start = kLatest, end = -kLatest;
    for (const Intervals* one : {&computing, &own}) {
      if (one->empty()) continue;
      start = std::min(start, one->front().first);
      end = std::max(end, one->back().second);
    }
    int64_t known = 0;  // of the messages, which are counted already
    for (size_t t = Reach(start); t < talk_.size() && talk_[t].first < end; ++t) {
      const Interval piece(std::max(talk_[t].first, start), std::min(talk_[t].second, end));
      known += piece.second - piece.first;
      talking.push_back(piece);
    }
    talking = Union(std::move(talking));
    found_.compute += Length(computing);
    found_.comm += Length(talking) - known;
    found_.both += Length(Common(computing, talking));
  }

  // The first message that ends behind a time.
  size_t Reach(int64_t time) const {
    const auto next = std::upper_bound(
        talk_.begin(), talk_.end(), time,
        [](int64_t value, const Interval& one) { return value < one.second; });
    return next - talk_.begin();
  }

  Intervals talk_, computing_, talking_;
  int64_t shared_ = -kLatest;
  Busy found_{0, 0, 0};
};

struct Placed {
  const Profile* profile;
  int64_t shift;
};

}  // namespace

Busy MeasureBusy(Functions* functions, const Ints& runs, const Ints& times, const Ints& computing,
                 const Ints& talking) {
  std::unordered_map<Ints, Profile, Hash> known;  // by function and times behind the compute stream's
  std::vector<const std::pair<const Ints, Profile>*> last(functions->size(), nullptr);
  Slacks slacks(*functions);
  std::vector<Placed> placed;
  int64_t at = 0;
  Ints key;
  for (const int64_t id : runs) {
    const Function& f = functions->Summarised(id);
    if (at + f.ports > static_cast<int64_t>(times.size())) {
      TVM_FFI_THROW(ValueError) << "times has " << times.size() << " entries, more are needed";
    }
    const int64_t first = times[at + kCompute];
    key.assign(1, id);
    const Ints& least = slacks.Of(id);
    for (int64_t p = 0; p < f.ports; ++p) {
      const int64_t late = times[at + p] - first;
      key.push_back(times[at + p] <= kNever || (p != kCompute && late <= least[p]) ? kNever : late);
    }
    at += f.ports;
    if (last[id] == nullptr || last[id]->first != key) {
      auto found = known.find(key);
      if (found == known.end()) {
        found = known.emplace(key, ProfileOf(*functions, id, key.data() + 1)).first;
      }
      last[id] = &*found;
    }
    const Profile& profile = last[id]->second;
    if (profile.end > profile.start) placed.push_back({&profile, first});
  }
  Intervals own = Union(Pairs(computing));
  std::vector<Profile> others;  // intervals that are given count as a run
  if (!own.empty()) {
    const int64_t start = own.front().first, end = own.back().second;
    others.push_back({Measured(std::move(own)), Measured({}), Measured({}), start, end});
    placed.push_back({&others.back(), 0});
  }
  const auto begin = [](const Placed& one) { return one.profile->start + one.shift; };
  std::stable_sort(placed.begin(), placed.end(),
                   [&](const Placed& a, const Placed& b) { return begin(a) < begin(b); });
  Sweep sweep(talking);
  for (size_t k = 0; k < placed.size(); ++k) {
    sweep.Take(*placed[k].profile, placed[k].shift,
               k + 1 < placed.size() ? begin(placed[k + 1]) : kLatest);
  }
  return sweep.Done();
}

}  // namespace simulate
}  // namespace tvm_distir
