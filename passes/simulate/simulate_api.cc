// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// What Python calls: one table of functions is a list of functions that share it.

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "ffi/array.h"
#include "simulate/busy.h"
#include "simulate/functions.h"
#include "simulate/retimed.h"
#include "simulate/units.h"

namespace tvm_distir {
namespace simulate {
namespace {

using tvm::ffi::Array;
using tvm::ffi::Shape;
using tvm::ffi::TensorView;

Shape AsShape(const Ints& values) { return Shape(values.begin(), values.end()); }

// Functions, and the last run of units.
class Session {
 public:
  explicit Session(Functions functions) : functions_(std::move(functions)) {}

  Shape Origins(int64_t id) {
    Check(id);
    return AsShape(functions_.at(id).origin);
  }

  Shape Apart(int64_t id) {
    Check(id);
    const Function& f = functions_.at(id);
    return Shape(f.apart.begin(), f.apart.end());
  }

  void Open(int64_t id, const TensorView& classes) {
    functions_.Open(id, Listed(classes, "classes"));
  }

  // Number of tasks, then the parameters that are ports.
  Shape Ports(int64_t id) {
    const Function& f = functions_.Summarised(id);
    Ints out{f.tasks};
    for (int64_t p = 0; p < f.params; ++p) {
      if (f.port_of[p] >= 0) out.push_back(p);
    }
    return AsShape(out);
  }

  void Map(int64_t id, const TensorView& out) { 
    Give(functions_.Summarised(id).summary.map, out, "out");
  }

  // Starts of all tasks of runs of a function, (runs, tasks), from (runs, ports) times.
  void Expand(int64_t id, const TensorView& times_in, const TensorView& out_in) {
    const Function& f = functions_.Summarised(id);
    const Int64View times(times_in, "times"), out(out_in, "out");
    const int64_t runs = times.size() / f.ports;
    times.CheckSize(runs * f.ports, "times");
    out.CheckSize(runs * f.tasks, "out");
    int64_t at = 0;
    for (int64_t r = 0; r < runs; ++r) {
      functions_.Expand(id, &times[r * f.ports],
                        [&](const Op&, int64_t start) { out[at++] = start; });
    }
  }

  // Starts of the first compute op of runs, ends of the last one, (runs, 2).
  void Spans(int64_t id, const TensorView& times_in, const TensorView& out_in) {
    const Function& f = functions_.Summarised(id);
    const Int64View times(times_in, "times"), out(out_in, "out");
    const int64_t runs = times.size() / f.ports;
    times.CheckSize(runs * f.ports, "times");
    out.CheckSize(2 * runs, "out");
    for (int64_t r = 0; r < runs; ++r) {
      for (const int64_t last : {0, 1}) {
        out[2 * r + last] = functions_.Edge(id, &times[r * f.ports], last != 0);
      }
    }
  }

  // Returns the numbers of times, of finished streams, of messages and of ranks, for Outcome.
  Shape Run(const TensorView& kind_function, const TensorView& kind_places, const TensorView& steps,
            const TensorView& template_begin, const TensorView& program_begin,
            const TensorView& programs, const TensorView& edges, int64_t cells, int64_t micros) {
    const Units units = Read(kind_function, kind_places, steps, template_begin, program_begin,
                             programs, edges, cells, micros);
    ran_ = RunUnits(&functions_, units);
    Ints sizes;
    for (const Ints* one : {&ran_.times, &ran_.finish, &ran_.sent, &ran_.position}) {
      sizes.push_back(static_cast<int64_t>(one->size()));
    }
    return AsShape(sizes);
  }

  void Outcome(const TensorView& times, const TensorView& finish, const TensorView& sent,
               const TensorView& position) {
    Give(ran_.times, times, "times");
    Give(ran_.finish, finish, "finish");
    Give(ran_.sent, sent, "sent");
    Give(ran_.position, position, "position");
    ran_ = {};
  }

  Shape Busy(const TensorView& runs, const TensorView& times, const TensorView& computing,
             const TensorView& talking) {
    const simulate::Busy found =
        MeasureBusy(&functions_, Listed(runs, "runs"), Listed(times, "times"),
                    Listed(computing, "computing"), Listed(talking, "talking"));
    return Shape({found.compute, found.comm, found.both});
  }

  // When each of many steps ends, -1 of one that does not fit or never does: those of the units,
  // with ops and messages of other durations, (columns, rows) and (messages, rows).
  void Sweep(const TensorView& columns, const TensorView& spent_in, const TensorView& sent_in,
             const TensorView& kind_function, const TensorView& kind_places,
             const TensorView& steps, const TensorView& template_begin,
             const TensorView& program_begin, const TensorView& programs, const TensorView& edges,
             int64_t cells, int64_t micros, const TensorView& out_in) {
    const Units units = Read(kind_function, kind_places, steps, template_begin, program_begin,
                             programs, edges, cells, micros);
    const Int64View spent(spent_in, "spent"), sent(sent_in, "sent"), out(out_in, "out");
    const int64_t rows = out.size();
    sent.CheckSize(static_cast<int64_t>(units.edges.size()) / 2 * rows, "sent");
    const Durations durations{&spent[0], &sent[0], rows, Listed(columns, "columns")};
    int64_t used = 0;
    for (const int64_t column : durations.column) used = std::max(used, column + 1);
    if (spent.size() < used * rows) TVM_FFI_THROW(ValueError) << "durations are too few";
    EndsOf(&functions_, units, durations, &out[0]);
  }

 private:
  static Units Read(const TensorView& kind_function, const TensorView& kind_places,
                    const TensorView& steps, const TensorView& template_begin,
                    const TensorView& program_begin, const TensorView& programs,
                    const TensorView& edges, int64_t cells, int64_t micros) {
    Units units{Listed(kind_function, "kind_function"),
                Listed(kind_places, "kind_places"),
                Listed(steps, "steps"),
                Listed(template_begin, "template_begin"),
                Listed(program_begin, "program_begin"),
                Listed(programs, "programs"),
                Listed(edges, "edges"),
                cells,
                micros};
    CheckBounds(units.template_begin, units.steps.size() / kStepColumns, "template_begin");
    CheckBounds(units.program_begin, units.programs.size() / 2, "program_begin");
    return units;
  }

  void Check(int64_t id) const {
    if (id < 0 || id >= functions_.size()) {
      TVM_FFI_THROW(IndexError) << "there is no function " << id;
    }
  }

  static void CheckBounds(const Ints& begin, size_t end, const char* name) {
    bool rises = !begin.empty() && begin.front() == 0;
    for (size_t i = 1; i < begin.size(); ++i) rises = rises && begin[i - 1] <= begin[i];
    if (!rises || begin.back() != static_cast<int64_t>(end)) {
      TVM_FFI_THROW(ValueError) << name << " must rise from 0 to " << end;
    }
  }

  Functions functions_;
  Ran ran_;
};

Array<tvm::ffi::Function> Simulation(TensorView functions, TensorView ops, TensorView ins,
                                     TensorView outs, TensorView results) {
  using F = tvm::ffi::Function;
  const auto session = std::make_shared<Session>(
      Functions(Listed(functions, "functions"), Listed(ops, "ops"), Listed(ins, "ins"),
                Listed(outs, "outs"), Listed(results, "results")));
  return {F::FromTyped([session](int64_t id) { return session->Origins(id); }),
          F::FromTyped([session](int64_t id) { return session->Apart(id); }),
          F::FromTyped([session](int64_t id, TensorView classes) { session->Open(id, classes); }),
          F::FromTyped([session](int64_t id) { return session->Ports(id); }),
          F::FromTyped([session](int64_t id, TensorView out) { session->Map(id, out); }),
          F::FromTyped([session](int64_t id, TensorView times, TensorView out) {
            session->Expand(id, times, out);
          }),
          F::FromTyped([session](int64_t id, TensorView times, TensorView out) {
            session->Spans(id, times, out);
          }),
          F::FromTyped([session](TensorView kind_function, TensorView kind_places,
                                 TensorView steps, TensorView template_begin,
                                 TensorView program_begin, TensorView programs, TensorView edges,
                                 int64_t cells, int64_t micros) {
            return session->Run(kind_function, kind_places, steps, template_begin, program_begin,
                                programs, edges, cells, micros);
          }),
          F::FromTyped([session](TensorView times, TensorView finish, TensorView sent,
                                 TensorView position) {
            session->Outcome(times, finish, sent, position);
          }),
          F::FromTyped([session](TensorView runs, TensorView times, TensorView computing,
                                 TensorView talking) {
            return session->Busy(runs, times, computing, talking);
          }),
          F::FromTyped([session](TensorView columns, TensorView spent, TensorView sent,
                                 TensorView kind_function, TensorView kind_places,
                                 TensorView steps, TensorView template_begin,
                                 TensorView program_begin, TensorView programs, TensorView edges,
                                 int64_t cells, int64_t micros, TensorView out) {
            session->Sweep(columns, spent, sent, kind_function, kind_places, steps, template_begin,
                           program_begin, programs, edges, cells, micros, out);
          })};
}

}  // namespace
}  // namespace simulate
}  // namespace tvm_distir

TVM_FFI_DLL_EXPORT_TYPED_FUNC(simulation, tvm_distir::simulate::Simulation);
