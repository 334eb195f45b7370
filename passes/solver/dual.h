// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Bounds and labellings of a sum of tables over pairs of variables, by sequential tree-reweighted
// message passing (V. Kolmogorov, Convergent Tree-Reweighted Message Passing for Energy
// Minimization, IEEE TPAMI 28(10), 2006), in integers.

#ifndef TVM_DISTIR_PASSES_DUAL_H_
#define TVM_DISTIR_PASSES_DUAL_H_

#include <cstdint>
#include <vector>

#include "solver/eliminate.h"
#include "solver/tables.h"

namespace tvm_distir {

// A message is a function of a variable's states that moves cost between a table and its variable;
// any messages leave the sum as it is, so every bound below holds exactly, whatever is rounded.
class Dual {
 public:
  // Factors stand over one or two variables. Labellings that cost more than `most` may be lost.
  Dual(const Tables& tables, const Problem& problem, int64_t most);

  // Passes over all variables in order and back: raises the bound, proposes labellings, and marks
  // the states that no labelling of at most the best known cost has.
  void Round();
  // Drops the marked states.
  void Prune();
  // Takes a labelling found elsewhere, where it costs less than the best one.
  void Offer(int64_t cost, Ints labels);
  // Begins with the messages of other bounds, of a problem with the same scopes and domains; before
  // the first round.
  void Resume(const Ints& messages);
  // The bits of a unit; then per table over a pair, in order of scopes, the messages to its first
  // variable and to its second one: of states that are gone the last ones.
  Ints Messages() const;

  // A lower bound of every labelling's cost, in whole units, rounded up.
  int64_t bound() const;
  // The best labelling known, and its cost; kInfinite when none costs at most `most`.
  int64_t best() const { return best_; }
  const Ints& labels() const { return labels_; }
  // States left of a variable, ascending, and how much dearer each looked than the least one when
  // the last round passed it (in units of no meaning).
  const Ints& states(int64_t variable) const { return nodes_[variable].states; }
  const Ints& excess(int64_t variable) const { return nodes_[variable].excess; }
  int64_t size() const { return static_cast<int64_t>(nodes_.size()); }

 private:
  struct Edge {
    int64_t first, second;      // variables, first < second
    Ints costs;                 // states of first x states of second
    Ints to_first, to_second;   // messages; the least entry of the newer one is 0
    Ints all_first, all_second; // as of the last drop of states, with those of states that are gone
    int64_t rest = 0;           // bound of the table with what its variables gave to it
    int64_t crossing = 0;       // what the bound gains while only one end has been passed
  };
  struct Node {
    Ints states;                // as the problem numbers them
    Ints costs;
    Ints excess;                // cost with all messages above its minimum, when last passed
    Ints part;                  // the excess divided by share
    int64_t low = 0;            // that minimum
    int64_t share = 1;          // edges the excess is divided among
    std::vector<int64_t> before, after;  // edges to lower and to higher variables
    std::vector<bool> out;      // states to be dropped
  };

  bool Sweep(bool forward);
  void Gather(Node* node);
  void Send(Edge* edge, bool forward);
  int64_t Label(int64_t variable, bool forward, Ints* picked);
  // The bound that the messages give; its terms may be of any size.
  __int128 Sum() const;

  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  int64_t cap_;                // all costs above it are one
  int64_t shift_ = 0;          // costs are multiplied by 2^shift, so that shares lose little
  int64_t bound_ = 0;          // shifted
  int64_t best_ = kInfinite;
  int64_t most_;
  Ints labels_;
  Ints sum_, old_, fixed_, open_;  // scratch
};

// Writes values to the places of some states.
inline void Spread(const Ints& values, const Ints& states, Ints* all) {
  for (size_t s = 0; s < values.size(); ++s) (*all)[states[s]] = values[s];
}

}  // namespace tvm_distir

#endif  // TVM_DISTIR_PASSES_DUAL_H_
