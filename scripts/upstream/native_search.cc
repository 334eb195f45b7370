// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Runs TVM's AxisGroupGraph, which native_search.py writes to axis_group_graph.inc, on a graph from
// standard input, whose lines have five numbers each:
//   edge TENSOR DIM TENSOR DIM KIND
//   source TENSOR DIM MESH AXIS 0
//   axis TENSOR DIM 0 0 0            prints the choice for it
// Arguments: the number of runs, and of tensors. Each run allocates the tensors anew, in another
// order, and prints one line: the choices, or the error.
#include <algorithm>
#include <iostream>
#include <limits>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

struct Failure {
  std::string said;
};

struct Message {
  std::ostringstream text;
  template <typename T>
  Message& operator<<(const T& value) {
    text << value;
    return *this;
  }
  ~Message() noexcept(false) { throw Failure{text.str()}; }
};

#define TVM_FFI_ICHECK(condition) \
  if (!(condition)) Message()
#define TVM_FFI_THROW(kind) Message()

namespace tvm {
// What the class takes from TVM: tensors by address, device meshes by structure.
struct ExprNode {
  int number = 0;
  template <typename T>
  bool IsInstance() const {
    return true;
  }
};
struct ConstantNode;
struct VarNode;
struct DeviceMesh {
  int number = -1;
};
struct Placement {};
struct Expr {
  const ExprNode* node;
};
std::ostream& operator<<(std::ostream& out, const Expr& expr) { return out << expr.node->number; }

namespace ffi {
struct StructuralEqual {
  bool operator()(DeviceMesh a, DeviceMesh b) const { return a.number == b.number; }
};
struct StructuralHash {
  size_t operator()(DeviceMesh mesh) const { return mesh.number; }
};
template <typename T>
T GetRef(const ExprNode* node) {
  return {node};
}
}  // namespace ffi

#include "axis_group_graph.inc"
}  // namespace tvm

int main(int argc, char** argv) {
  using Graph = tvm::AxisGroupGraph;
  struct Line {
    std::string word;
    int a = 0, i = 0, b = 0, j = 0, kind = 0;
  };
  std::vector<Line> lines;
  for (Line line; std::cin >> line.word;) {
    std::cin >> line.a >> line.i >> line.b >> line.j >> line.kind;
    lines.push_back(line);
  }
  const int runs = std::stoi(argv[1]), tensors = std::stoi(argv[2]);
  std::mt19937 random(0);
  for (int run = 0; run < runs; ++run) {
    std::vector<std::unique_ptr<tvm::ExprNode>> nodes(tensors), padding;
    std::vector<int> order(tensors);
    for (int n = 0; n < tensors; ++n) order[n] = n;
    std::shuffle(order.begin(), order.end(), random);
    for (int n : order) {
      nodes[n] = std::make_unique<tvm::ExprNode>();
      nodes[n]->number = n;
      for (auto count = random() % 4; count > 0; --count)
        padding.push_back(std::make_unique<tvm::ExprNode>());
    }
    try {
      Graph graph;
      std::vector<std::pair<int, int>> axes;
      for (const Line& line : lines) {
        tvm::Axis axis(nodes[line.a].get(), line.i);
        if (line.word == "edge") {
          graph.JoinAxis(axis, tvm::Axis(nodes[line.b].get(), line.j),
                         static_cast<Graph::EdgeType>(line.kind));
        } else if (line.word == "source") {
          graph.AddSrcShardingPoint(axis, {tvm::DeviceMesh{line.b}, line.j});
        } else {
          axes.push_back({line.a, line.i});
        }
      }
      graph.PropagateShardingSpec();
      for (auto [a, i] : axes) {
        auto [spec, has] = graph.GetAxisShardingSpec(tvm::Axis(nodes[a].get(), i));
        if (has) std::cout << a << "," << i << ":" << spec.first.number << "," << spec.second << " ";
      }
      std::cout << "\n";
    } catch (const Failure& failure) {
      std::cout << "error: " << failure.said << "\n";
    }
  }
}
