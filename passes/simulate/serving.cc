// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// The event loop of serving engines: which requests does each step work on, and when does it end?
//
// A router sends each request that arrives to one of several replicas of the engine. It sees the
// requests that are in flight when the request arrives, so that the replicas run in order of time.
//
// A step works on one token of each request that decodes, and on tokens of prompts. Its time is
// interpolated in tables. Requests wait in order of arrival; a request takes pages of the cache as
// its tokens grow, and the one that was admitted last gives its pages up where none are free, to
// compute its tokens again. Prefixes that requests share stay in pages that nobody needs.
//
// A replica in pipeline stages has as many groups of requests in flight as stages, each an engine
// with its own caches. A step passes the stages in order; each stage works on one step at a time.

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "ffi/array.h"

namespace tvm_distir {
namespace {

using tvm::ffi::Function;
using tvm::ffi::TensorView;

enum Scheduler { kContinuous = 0, kPrefillFirst = 1, kStatic = 2 };
enum Router { kRoundRobin = 0, kLeastRequests = 1 };
// Columns of a request, and of what is found about it.
enum RequestField { kArrival, kInput, kOutput, kPrefix, kPrefixTokens, kFilled, kRequestFields };
enum FoundField {
  kFirst, kFinish, kPreemptions, kAdmitted, kStart, kArrived, kReplica, kFoundFields
};
enum OptionField {
  kScheduler, kMostTokens, kMostRequests, kPages, kPage, kStepOverhead, kGain, kUsers, kPools,
  kReplicas, kRouter, kStages, kHost, kOptionFields
};
enum StepField { kBegin, kSpan, kDecoding, kPromptTokens, kUsedPages, kStepReplica, kStepFields };
constexpr int64_t kUnit = 1 << 16;  // fixed point of the tokens that a step gains
constexpr int64_t kNever = -1;

// A table of times at points of two sizes, bilinear between them and linear beyond.
//
// There are several such tables of the same sizes, one for each part of a step: the time in the
// first stage, the time from the end of a stage to the beginning of the next, the time there, ...
class Table {
 public:
  Table(const TensorView& rows, const TensorView& columns, const TensorView& times, int64_t parts,
        const char* name)
      : rows_(Listed(rows, "rows")), columns_(Listed(columns, "columns")),
        times_(Listed(times, name)) {
    if (rows_.size() < 2 || columns_.size() < 2 ||
        times_.size() != static_cast<size_t>(parts) * rows_.size() * columns_.size()) {
      TVM_FFI_THROW(ValueError) << name << " needs two rows and columns at least in each part";
    }
  }

  double At(double row, double column, int64_t part) const {
    const size_t i = Below(rows_, row), j = Below(columns_, column);
    const size_t top = (static_cast<size_t>(part) * rows_.size() + i) * columns_.size() + j;
    const size_t below = top + columns_.size();
    const double u = (row - rows_[i]) / static_cast<double>(rows_[i + 1] - rows_[i]);
    const double v = (column - columns_[j]) / static_cast<double>(columns_[j + 1] - columns_[j]);
    const double first = Cell(top) + (Cell(top + 1) - Cell(top)) * v;
    const double second = Cell(below) + (Cell(below + 1) - Cell(below)) * v;
    return first + (second - first) * u;
  }

 private:
  static size_t Below(const std::vector<int64_t>& axis, double value) {
    size_t i = 0;
    while (i + 2 < axis.size() && static_cast<double>(axis[i + 1]) <= value) ++i;
    return i;
  }
  double Cell(size_t place) const { return static_cast<double>(times_[place]); }

  std::vector<int64_t> rows_, columns_, times_;
};

struct Request {
  int64_t arrival, input, output, prefix, prefix_tokens, filled;
  int64_t held = 0;       // tokens whose keys and values are in its cache
  int64_t pages = 0;      // pages that it alone holds
  int64_t shared = 0;     // pages of its prefix
  int64_t made = 0;       // tokens that it has generated, in parts of kUnit
  int64_t again = 0;      // tokens to compute before it goes on
  bool uses_prefix = false;
};

struct Prefix {
  int64_t pages = 0, users = 0, used_at = 0;
};

// What the replicas of an engine share: requests, options and tables, and what is found.
struct Workload {
  Workload(const TensorView& given, const TensorView& options, Table decode_times,
           Table prefill_times, const TensorView& found_rows, const TensorView& step_rows)
      : option(Listed(options, "options")), decode(std::move(decode_times)),
        prefill(std::move(prefill_times)), found(found_rows, "found"), steps(step_rows, "steps") {
    const std::vector<int64_t> rows = Listed(given, "requests");
    for (size_t at = 0; at + kRequestFields <= rows.size(); at += kRequestFields) {
      Request r;
      r.arrival = rows[at + kArrival];
      r.input = rows[at + kInput];
      r.output = rows[at + kOutput];
      r.prefix = rows[at + kPrefix];
      r.prefix_tokens = rows[at + kPrefixTokens];
      r.filled = rows[at + kFilled];
      r.again = r.filled ? 0 : r.input;
      requests.push_back(r);
    }
    found.CheckSize(Count() * kFoundFields, "found");
    for (int64_t i = 0; i < found.size(); ++i) found[i] = i % kFoundFields < 2 ? kNever : 0;
    const int64_t users = option[kUsers];
    const int64_t first = users > 0 ? std::min(users, Count()) : Count();
    while (arrived < first) Arrive(requests[arrived].arrival);
  }

  int64_t Count() const { return static_cast<int64_t>(requests.size()); }

  // The next request arrives at a time; the host passes it on to the router later.
  void Arrive(int64_t time) {
    requests[arrived].arrival = time;
    arriving.emplace(time + option[kHost], arrived++);
  }

  std::vector<int64_t> option;
  Table decode, prefill;
  Int64View found, steps;
  std::vector<Request> requests;
  // Times and numbers of requests that the router has not sent yet, the earliest on top.
  std::priority_queue<std::pair<int64_t, int64_t>, std::vector<std::pair<int64_t, int64_t>>,
                      std::greater<>>
      arriving;
  int64_t arrived = 0, finished = 0, step = 0;
  // Runs a step, if it is to run: see ServeSteps.
  std::optional<Function> run_step;
};

class Engine {
 public:
  Engine(Workload* work, int64_t replica, std::vector<int64_t>* stages)
      : option_(work->option), decode_(work->decode), prefill_(work->prefill),
        found_(work->found), steps_(work->steps), requests_(work->requests), work_(work),
        stages_(stages), replica_(replica), free_(work->option[kPages]) {}

  bool Idle() const { return running_.empty() && waiting_.empty(); }

  // When the next step begins, if the engine is not idle: when the first stage is free.
  int64_t Now() const { return std::max(now_, stages_->front()); }

  // Since when the engine waits for the first stage.
  int64_t Ready() const { return now_; }

  // Requests that have been taken, and have not ended at a time since the last step began.
  int64_t InFlight(int64_t time) const { return taken_ - ended_ + (now_ > time ? ending_ : 0); }

  void Take(int64_t id) {
    if (Idle()) now_ = std::max(now_, requests_[id].arrival + option_[kHost]);
    found_[id * kFoundFields + kArrived] = requests_[id].arrival;
    found_[id * kFoundFields + kReplica] = replica_;
    waiting_.push_back(id);
    ++taken_;
  }

  // Runs a step; false if a request can never run.
  bool Step() {
    now_ = Now();
    const int64_t kind = option_[kScheduler];
    const int64_t most = option_[kMostTokens];
    int64_t budget = most * option_[kPools];
    std::vector<std::pair<int64_t, int64_t>> chunks;
    std::vector<int64_t> decoding;
    bool prompts = false;
    for (const int64_t id : running_) prompts |= requests_[id].again > 0;
    const bool may_admit = kind != kStatic || running_.empty();
    const bool together = kind == kContinuous;
    preempted_ = false;
    if (together) Decode(&decoding, &budget);
    // Prompts that have begun, then those that wait.
    for (const int64_t id : running_) {
      Request& r = requests_[id];
      if (r.again == 0 || budget <= 0) continue;
      const int64_t chunk = std::min({r.again, budget, most});
      if (!Grow(&r, r.held + chunk)) continue;
      chunks.emplace_back(id, chunk);
      budget -= chunk;
    }
    while (may_admit && !preempted_ && !waiting_.empty() && budget > 0 &&
           static_cast<int64_t>(running_.size()) < option_[kMostRequests] * option_[kPools]) {
      const int64_t id = waiting_.front();
      Request& r = requests_[id];
      if (!together && r.again > budget && !chunks.empty()) break;
      if (!Admit(id, std::min(budget, most))) break;
      waiting_.pop_front();
      if (r.again == 0) {
        if (together) decoding.push_back(id);
        continue;
      }
      const int64_t chunk = std::min({r.again, budget, most});
      chunks.emplace_back(id, chunk);
      budget -= chunk;
    }
    if (!together && chunks.empty()) Decode(&decoding, &budget);
    if (chunks.empty() && decoding.empty()) {
      if (running_.empty()) return false;  // the first request that waits never fits
      if (prompts && running_.size() > 1) {
        Preempt(static_cast<int64_t>(running_.size()) - 1);
        return true;
      }
      return false;
    }
    Work(decoding, chunks);
    return true;
  }

 private:
  int64_t PagesFor(int64_t tokens) const {
    return (tokens + option_[kPage] - 1) / option_[kPage];
  }

  // Frees pages of prefixes that nobody uses, the oldest first, until `count` pages are free.
  bool Free(int64_t count) {
    while (free_ < count) {
      auto oldest = prefixes_.end();
      for (auto it = prefixes_.begin(); it != prefixes_.end(); ++it) {
        if (it->second.users == 0 &&
            (oldest == prefixes_.end() || it->second.used_at < oldest->second.used_at)) {
          oldest = it;
        }
      }
      if (oldest == prefixes_.end()) return false;
      free_ += oldest->second.pages;
      prefixes_.erase(oldest);
    }
    return true;
  }

  // Takes pages so that a request holds `tokens`.
  bool Grow(Request* r, int64_t tokens) {
    const int64_t more = PagesFor(tokens) - r->shared - r->pages;
    if (more <= 0) return true;
    if (!Free(more)) return false;
    free_ -= more;
    r->pages += more;
    return true;
  }

  void Release(Request* r) {
    free_ += r->pages;
    r->pages = 0;
    r->held = 0;
    if (r->uses_prefix) {
      Prefix& known = prefixes_[r->prefix];
      --known.users;
      known.used_at = now_;
      r->uses_prefix = false;
    }
    r->shared = 0;
  }

  // Uses the pages of a prefix that are still there.
  void Share(Request* r) {
    const auto it = r->prefix < 0 ? prefixes_.end() : prefixes_.find(r->prefix);
    if (it == prefixes_.end() || r->filled) return;
    ++it->second.users;
    it->second.used_at = now_;
    r->uses_prefix = true;
    r->shared = it->second.pages;
    const int64_t known = std::min(it->second.pages * option_[kPage], r->again - 1);
    r->held = known;
    r->again -= known;
  }

  // Leaves the full pages of the prefix of a request that has filled them to others.
  void Publish(Request* r) {
    const int64_t pages = r->prefix_tokens / option_[kPage];
    if (r->prefix < 0 || r->uses_prefix || pages == 0 || prefixes_.count(r->prefix)) return;
    const int64_t moved = std::min(pages, r->pages);
    prefixes_[r->prefix] = Prefix{moved, 1, now_};
    r->pages -= moved;
    r->shared = moved;
    r->uses_prefix = true;
  }

  bool Admit(int64_t id, int64_t tokens) {
    Request& r = requests_[id];
    const int64_t before = r.again;
    Share(&r);
    const int64_t chunk = std::min(tokens, r.again);
    const int64_t needed = r.filled && r.held == 0 ? r.input + 1 : r.held + chunk;
    if (!Grow(&r, needed)) {
      Release(&r);
      r.again = before;
      return false;
    }
    if (r.filled && r.held == 0) {
      r.held = r.input;
      if (r.made == 0) r.made = kUnit;
    }
    int64_t* found = &found_[id * kFoundFields];
    if (found[kAdmitted] == 0) {
      found[kStart] = now_;
      found[kAdmitted] = 1;
    }
    running_.push_back(id);
    return true;
  }

  void Preempt(int64_t place) {
    const int64_t id = running_[place];
    Request& r = requests_[id];
    // The cache lacks the last token that has been generated.
    const int64_t known = r.held + r.again + (r.made > 0 && r.again == 0 ? 1 : 0);
    Release(&r);
    r.again = known;
    r.filled = 0;
    ++found_[id * kFoundFields + kPreemptions];
    running_.erase(running_.begin() + place);
    waiting_.push_front(id);
    preempted_ = true;
  }

  // Selects the requests that decode, and preempts the last ones where pages are missing.
  void Decode(std::vector<int64_t>* decoding, int64_t* budget) {
    for (size_t place = 0; place < running_.size();) {
      const int64_t id = running_[place];
      Request& r = requests_[id];
      if (r.again > 0 || *budget <= 0) {
        ++place;
        continue;
      }
      bool fits = Grow(&r, r.held + 1);
      while (!fits && running_.size() > place + 1) {
        Preempt(static_cast<int64_t>(running_.size()) - 1);
        fits = Grow(&r, r.held + 1);
      }
      if (!fits) {
        if (running_.size() > 1) Preempt(static_cast<int64_t>(place));
        return;
      }
      decoding->push_back(id);
      --*budget;
      ++place;
    }
  }

  // The sizes by which the times of a step are looked up.
  struct StepSizes {
    double count = 0, context = 0;  // requests that decode, and tokens in the cache of each
    double rows = 0, past = 0;      // tokens that fill caches, and those before them
  };

  StepSizes Sizes(const std::vector<int64_t>& decoding,
                  const std::vector<std::pair<int64_t, int64_t>>& chunks) const {
    StepSizes sizes;
    sizes.count = static_cast<double>(decoding.size());
    for (const int64_t id : decoding) sizes.context += static_cast<double>(requests_[id].held);
    if (sizes.count > 0) sizes.context /= sizes.count;
    if (chunks.empty()) return sizes;
    double tokens = 0, pairs = 0, most_tokens = 0, most_pairs = 0;
    for (const auto& [id, chunk] : chunks) {
      const double rows = static_cast<double>(chunk);
      const double seen = rows * (static_cast<double>(requests_[id].held) + rows / 2);
      tokens += rows;
      pairs += seen;
      most_tokens = std::max(most_tokens, rows);
      most_pairs = std::max(most_pairs, seen);
    }
    // A prompt is in one pool, and the pools share the prompts evenly at best. One prompt with as
    // many pairs of queries and keys takes as long.
    const double pools = static_cast<double>(option_[kPools]);
    const double filled = std::min(pools, static_cast<double>(chunks.size()));
    sizes.rows = std::max(most_tokens, tokens / filled) + sizes.count / pools;
    pairs = std::max(most_pairs, pairs / filled);
    sizes.past = pairs / sizes.rows - sizes.rows / 2;
    return sizes;
  }

  // The time of a part of a step.
  int64_t Span(const StepSizes& sizes, int64_t part) const {
    double time = 0;
    if (sizes.rows == 0) {
      time = decode_.At(sizes.count, sizes.context, part);
    } else {
      time = prefill_.At(sizes.rows, sizes.past, part);
      if (sizes.count > 0) {
        time += decode_.At(sizes.count, sizes.context, part) - decode_.At(sizes.count, 0, part);
      }
    }
    return static_cast<int64_t>(std::floor(time + 0.5));
  }

  // Takes each stage when the step arrives there and the stage is free; returns when it ends.
  int64_t Pass(const StepSizes& sizes) {
    int64_t time = now_;
    for (size_t stage = 0; stage < stages_->size(); ++stage) {
      const int64_t part = 2 * static_cast<int64_t>(stage);
      if (stage > 0) time += Span(sizes, part - 1);
      time = std::max(time, (*stages_)[stage]) + std::max<int64_t>(1, Span(sizes, part));
      (*stages_)[stage] = time;
    }
    return time;
  }

  void Work(const std::vector<int64_t>& decoding,
            const std::vector<std::pair<int64_t, int64_t>>& chunks) {
    const int64_t begin = now_;
    ending_ = 0;
    const int64_t used = option_[kPages] - free_;
    now_ = Pass(Sizes(decoding, chunks)) + option_[kStepOverhead];
    int64_t prompt_tokens = 0;
    for (const auto& [id, chunk] : chunks) prompt_tokens += chunk;
    const int64_t count = static_cast<int64_t>(decoding.size());
    const std::vector<int64_t> row = {begin, now_ - begin, count, prompt_tokens, used, replica_};
    if (work_->run_step) RunStep(row, decoding, chunks);
    for (const auto& [id, chunk] : chunks) {
      Request& r = requests_[id];
      r.held += chunk;
      r.again -= chunk;
      if (r.again > 0) continue;
      Publish(&r);
      if (r.made == 0) {
        r.made = kUnit;
        found_[id * kFoundFields + kFirst] = now_;
      } else {
        r.made += kUnit;
      }
      Finish(id);
    }
    for (const int64_t id : decoding) {
      Request& r = requests_[id];
      r.made = std::min(r.output * kUnit, r.made + option_[kGain]);
      r.held = std::max(r.held, r.input + r.made / kUnit - 1);
      if (found_[id * kFoundFields + kFirst] == kNever) found_[id * kFoundFields + kFirst] = now_;
      Finish(id);
    }
    running_.erase(std::remove_if(running_.begin(), running_.end(),
                                  [&](int64_t id) {
                                    return found_[id * kFoundFields + kFinish] != kNever;
                                  }),
                   running_.end());
    const int64_t at = work_->step++ * kStepFields;
    if (at + kStepFields > steps_.size()) return;
    for (int64_t field = 0; field < kStepFields; ++field) steps_[at + field] = row[field];
  }

  // Lets a step run; ends requests whose next token is their last one.
  void RunStep(const std::vector<int64_t>& row, const std::vector<int64_t>& decoding,
               const std::vector<std::pair<int64_t, int64_t>>& chunks) {
    std::vector<int64_t> numbers(row.begin(), row.begin() + kStepReplica);
    const auto add = [&](int64_t id, int64_t tokens) {
      numbers.insert(numbers.end(), {id, requests_[id].held, tokens});
    };
    for (const auto& [id, chunk] : chunks) add(id, chunk);
    for (const int64_t id : decoding) add(id, 1);
    for (const int64_t id : running_) add(id, 0);
    using Ids = tvm::ffi::Array<int64_t>;
    for (const int64_t id : (*work_->run_step)(tvm::ffi::Shape(numbers)).cast<Ids>()) {
      requests_[id].output = requests_[id].made / kUnit + 1;
    }
  }

  void Finish(int64_t id) {
    Request& r = requests_[id];
    if (r.made < r.output * kUnit) return;
    found_[id * kFoundFields + kFinish] = now_;
    Release(&r);
    ++ended_;
    ++ending_;
    ++work_->finished;
    if (option_[kUsers] > 0 && work_->arrived < work_->Count()) work_->Arrive(now_);
  }

  const std::vector<int64_t>& option_;
  const Table &decode_, &prefill_;
  const Int64View& found_;
  const Int64View& steps_;
  std::vector<Request>& requests_;
  Workload* work_;
  std::vector<int64_t>* stages_;  // when each stage of the replica is free
  std::vector<int64_t> running_;
  std::deque<int64_t> waiting_;
  std::map<int64_t, Prefix> prefixes_;
  int64_t replica_, free_, now_ = 0;
  // Requests that were taken, that have ended, and that end with the last step.
  int64_t taken_ = 0, ended_ = 0, ending_ = 0;
  bool preempted_ = false;
};

// The replica that a router sends a request to: the next one in turn, or the first of those with
// the fewest requests in flight.
size_t Routed(const std::vector<Engine>& engines, int64_t router, int64_t time, int64_t number) {
  if (router == kRoundRobin) return static_cast<size_t>(number) % engines.size();
  size_t least = 0;
  for (size_t k = 1; k < engines.size(); ++k) {
    if (engines[k].InFlight(time) < engines[least].InFlight(time)) least = k;
  }
  return least;
}

// Returns the number of steps; as many as there is room for are written. A request that arrives
// when a step begins takes part in it.
int64_t Run(Workload* work) {
  std::vector<Engine> engines;
  const int64_t stages = work->option[kStages], count = work->option[kReplicas];
  std::vector<std::vector<int64_t>> free(static_cast<size_t>(count),
                                         std::vector<int64_t>(static_cast<size_t>(stages), 0));
  for (int64_t k = 0; k < count * stages; ++k) {
    engines.emplace_back(work, k, &free[static_cast<size_t>(k / stages)]);
  }
  int64_t routed = 0;
  while (work->finished < work->Count()) {
    Engine* next = nullptr;
    for (Engine& engine : engines) {
      if (engine.Idle()) continue;
      if (next == nullptr || std::pair(engine.Now(), engine.Ready()) <
                                 std::pair(next->Now(), next->Ready())) {
        next = &engine;
      }
    }
    if (!work->arriving.empty()) {
      const auto [time, id] = work->arriving.top();
      if (next == nullptr || time <= next->Now()) {
        work->arriving.pop();
        engines[Routed(engines, work->option[kRouter], time, routed++)].Take(id);
        continue;
      }
    }
    if (!next->Step()) return kNever;
  }
  return work->step;
}

int64_t ServeAll(const TensorView& requests, const TensorView& options, const TensorView& batches,
                 const TensorView& contexts, const TensorView& decode, const TensorView& tokens,
                 const TensorView& pasts, const TensorView& prefill, const TensorView& found,
                 const TensorView& steps, std::optional<Function> run_step) {
  const std::vector<int64_t> option = Listed(options, "options");
  if (option.size() != kOptionFields) TVM_FFI_THROW(ValueError) << "options are incomplete";
  if (option[kReplicas] < 1 || option[kStages] < 1) {
    TVM_FFI_THROW(ValueError) << "there is no replica, or no stage";
  }
  const int64_t parts = 2 * option[kStages] - 1;
  Workload work(requests, options, Table(batches, contexts, decode, parts, "decode"),
                Table(tokens, pasts, prefill, parts, "prefill"), found, steps);
  work.run_step = std::move(run_step);
  return Run(&work);
}

int64_t Serve(const TensorView& requests, const TensorView& options, const TensorView& batches,
              const TensorView& contexts, const TensorView& decode, const TensorView& tokens,
              const TensorView& pasts, const TensorView& prefill, const TensorView& found,
              const TensorView& steps) {
  return ServeAll(requests, options, batches, contexts, decode, tokens, pasts, prefill, found, steps,
                  std::nullopt);
}

// Each step runs, by a function of integers: the first five fields of the step, then three for each
// request that it works on, and then for each that runs: its number, the tokens in its cache before
// the step, and the tokens that the step adds (0 of those that run). The function returns the
// numbers of the requests that end with their next token.
int64_t ServeSteps(const TensorView& requests, const TensorView& options,
                   const TensorView& batches, const TensorView& contexts, const TensorView& decode,
                   const TensorView& tokens, const TensorView& pasts, const TensorView& prefill,
                   const TensorView& found, const TensorView& steps, Function run_step) {
  return ServeAll(requests, options, batches, contexts, decode, tokens, pasts, prefill, found, steps,
                  std::move(run_step));
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(serve, Serve);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(serve_steps, ServeSteps);

}  // namespace
}  // namespace tvm_distir
