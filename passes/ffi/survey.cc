// Licensed under the Apache License, Version 2.0; see LICENSE.
// SPDX-License-Identifier: Apache-2.0
//
// Reads a Relax function in one sweep, by the fields that TVM's nodes declare to the FFI: which
// variables have equal types, which variables annotations are of, which annotations ask the same,
// which variables have given names, which calls are alike and what their operands are.

#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/object.h>
#include <tvm/ffi/string.h>

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ffi/numbers.h"

namespace tvm_distir {
namespace {

using tvm::ffi::Array;
using tvm::ffi::ObjectRef;
using tvm::ffi::String;

constexpr int64_t kNone = -1;
constexpr int64_t kConstant = -1;  // among operands

// What a part of a call's description stands for.
enum Part : int64_t { kVariable, kTuple, kTensorConstant, kOther };

// Getters of the fields read here, found once.
struct Fields {
  FieldGetter params{"relax.expr.Function", "params"}, body{"relax.expr.Function", "body"};
  FieldGetter blocks{"relax.expr.SeqExpr", "blocks"};
  FieldGetter bindings{"relax.expr.BindingBlock", "bindings"};
  FieldGetter var{"relax.expr.Binding", "var"}, value{"relax.expr.VarBinding", "value"};
  FieldGetter name{"ir.Var", "name"}, type{"ir.Expr", "ty"}, fields{"ir.Tuple", "fields"};
  FieldGetter op{"ir.Call", "op"}, args{"ir.Call", "args"};
  FieldGetter attrs{"ir.Call", "attrs"}, type_args{"ir.Call", "ty_args"};
  FieldGetter shape{"relax.TensorType", "shape"}, dtype{"relax.TensorType", "dtype"};
  FieldGetter vdevice{"relax.TensorType", "vdevice"};
  FieldGetter element{"ir.PrimType", "dtype"}, dims{"relax.expr.ShapeExpr", "values"};
  FieldGetter number{"ir.IntImm", "value"};
  FieldGetter mesh{"relax.attrs.DistributionAttrs", "device_mesh"};
  FieldGetter placement{"relax.attrs.DistributionAttrs", "placement"};
  int32_t function = TypeIndex("relax.expr.Function");
  int32_t sequence = TypeIndex("relax.expr.SeqExpr"), tensor = TypeIndex("relax.TensorType");
  int32_t binding = TypeIndex("relax.expr.VarBinding"), call = TypeIndex("ir.Call");
  int32_t op_node = TypeIndex("ir.Op"), tuple = TypeIndex("ir.Tuple");
  int32_t constant = TypeIndex("ir.GenericConst"), global = TypeIndex("ir.GlobalVar");
  int32_t dataflow = TypeIndex("relax.expr.DataflowVar");
  int32_t real = TypeIndex("ir.FloatImm"), text = TypeIndex("ir.StringImm");
  int32_t shape_expr = TypeIndex("relax.expr.ShapeExpr"), integer = TypeIndex("ir.IntImm");

  static const Fields& Get() {
    static const Fields fields;
    return fields;
  }
};

class Surveyor {
 public:
  Surveyor(Numbers* numbers, const Array<String>& names) : shared_(*numbers) {
    for (const String& name : names) names_.emplace(name.data(), name.size());
  }

  Array<Any> Run(const ObjectRef& function, const ObjectRef& annotation) {
    if (function->type_index() != fields_.function) {
      TVM_FFI_THROW(TypeError) << "a relax.Function is needed, not a " << function->GetTypeKey();
    }
    const Array<Any> params = fields_.params(function).cast<Array<Any>>();
    numbers_.reserve(params.size());
    for (const Any& param : params) AddVariable(param);
    const Any body = fields_.body(function);
    if (Node(body) == nullptr || Node(body)->type_index() != fields_.sequence) {
      TVM_FFI_THROW(TypeError) << "the body of the function is no sequence of bindings";
    }
    for (const Any& block : fields_.blocks(Node(body)).cast<Array<Any>>()) {
      const Array<Any> bindings = fields_.bindings(Node(block)).cast<Array<Any>>();
      numbers_.reserve(numbers_.size() + bindings.size());
      calls_.reserve(calls_.size() + bindings.size());
      for (const Any& binding : bindings) {
        const Any variable = fields_.var(Node(binding)), call = CallOf(Node(binding));
        sources_.push_back(Source(Node(call), annotation.get()));
        named_.push_back(IsNamed(Node(variable)));
        AddVariable(variable);
        AddAnnotation(Node(call));
        AddCall(Node(call));
      }
    }
    return {String(said_), AsBytes(handles_), AsBytes(hidden_), AsBytes(first_), AsBytes(sources_),
            AsBytes(asked_),   AsBytes(named_),  AsBytes(like_),  AsBytes(classes_of_calls_),
            AsBytes(begin_),   AsBytes(operands_), AsBytes(type_numbers_)};
  }

 private:
  void AddVariable(const Any& variable) {
    const int64_t number = static_cast<int64_t>(first_.size());
    numbers_.emplace(Node(variable), number);
    const String name = fields_.name(Node(variable)).cast<String>();
    said_.append(name.data(), name.size()).push_back('\0');
    handles_.push_back(reinterpret_cast<int64_t>(Node(variable)));
    hidden_.push_back(Node(variable)->type_index() == fields_.dataflow ? 1 : 0);
    const Any type = fields_.type(Node(variable));
    const auto [known, is_new] = types_.try_emplace(Node(type), kNone);
    if (is_new) {
      Ints key;
      if (Describe(type, &key)) known->second = classes_.emplace(key, number).first->second;
    }
    first_.push_back(known->second);
    type_numbers_.push_back(shared_.Of(type));
  }

  bool IsNamed(const Object* variable) const {
    if (names_.empty()) return false;
    const String name = fields_.name(variable).cast<String>();
    return names_.count(std::string(name.data(), name.size())) > 0;
  }

  // Element type and dims of a tensor type of which all dims are numbers; false for others.
  bool Describe(const Any& type, Ints* key) const {
    const Object* node = Node(type);
    if (node == nullptr || node->type_index() != fields_.tensor) return false;
    const Any shape = fields_.shape(node), dtype = fields_.dtype(node);
    const Object* dims = Node(shape);
    if (dims == nullptr || dims->type_index() != fields_.shape_expr) return false;
    if (Node(dtype) == nullptr || fields_.vdevice(node) != nullptr) return false;
    const DLDataType element = fields_.element(Node(dtype)).cast<DLDataType>();
    key->assign({element.code, element.bits, element.lanes});
    for (const Any& dim : fields_.dims(dims).cast<Array<Any>>()) {
      if (Node(dim) == nullptr || Node(dim)->type_index() != fields_.integer) return false;
      key->push_back(fields_.number(Node(dim)).cast<int64_t>());
    }
    return true;
  }

  // The call that a binding binds; none where it binds something else.
  Any CallOf(const Object* binding) const {
    if (binding->type_index() != fields_.binding) return nullptr;
    const Any value = fields_.value(binding);
    const bool is_call = Node(value) != nullptr && Node(value)->type_index() == fields_.call;
    return is_call ? value : Any(nullptr);
  }

  // Notes the first annotation that asks the same of a variable of the same type, if the present
  // binding is an annotation of a variable of known type.
  void AddAnnotation(const Object* call) {
    const int64_t number = static_cast<int64_t>(asked_.size()), source = sources_.back();
    if (source == kNone || first_.back() == kNone || first_[source] == kNone) {
      asked_.push_back(kNone);
      return;
    }
    const Any attrs = fields_.attrs(call);
    const Any mesh = fields_.mesh(Node(attrs)), placement = fields_.placement(Node(attrs));
    const Ints key = {reinterpret_cast<int64_t>(Node(mesh)),
                      reinterpret_cast<int64_t>(Node(placement)), first_[source], first_.back(),
                      named_.back()};
    asked_.push_back(annotations_.emplace(key, number).first->second);
  }

  // Notes the operands of a call of an op or of a function, the first call like it, the same callee
  // on operands of the same types, and the number of its class. What cannot be told in one sweep is
  // like no other; annotations are known as such already.
  void AddCall(const Object* call) {
    const int64_t number = static_cast<int64_t>(like_.size());
    const size_t before = operands_.size();
    Ints& key = key_;
    is_own_ = false;
    const bool is_open = call != nullptr && sources_.back() == kNone;
    int64_t first = kNone, alike = kNone;
    if (is_open && DescribeCall(call, &key)) {
      if (!is_own_) alike = shared_.Alike(key);
      first = is_own_ ? own_calls_.emplace(key, number).first->second
                      : calls_.emplace(alike, number).first->second;
    }
    like_.push_back(first);
    classes_of_calls_.push_back(alike);
    if (first == kNone) operands_.resize(before);
    begin_.push_back(static_cast<int64_t>(operands_.size()));
  }

  bool DescribeCall(const Object* call, Ints* key) {
    const Any op = fields_.op(call);
    if (Node(op) == nullptr) return false;
    const int32_t callee = Node(op)->type_index();
    if (callee != fields_.op_node && callee != fields_.global) return false;
    is_own_ = callee == fields_.global;  // ops are never let go, other callees are
    key->assign({kPlainCall, reinterpret_cast<int64_t>(Node(op)), shared_.Of(fields_.attrs(call)),
                 shared_.Of(fields_.type_args(call)), type_numbers_.back()});
    for (const Any& arg : fields_.args(call).cast<Array<Any>>()) {
      if (!AddArgument(arg, key)) return false;
    }
    return true;
  }

  bool AddArgument(const Any& arg, Ints* key) {
    const Object* node = Node(arg);
    if (node == nullptr) return false;
    const int32_t kind = node->type_index();
    const auto variable = numbers_.find(node);
    if (variable != numbers_.end()) {
      key->insert(key->end(), {kVariable, type_numbers_[variable->second]});
      operands_.push_back(variable->second);
      return true;
    }
    if (kind == fields_.tuple) {
      const Array<Any> fields = fields_.fields(node).cast<Array<Any>>();
      key->insert(key->end(), {kTuple, static_cast<int64_t>(fields.size())});
      for (const Any& field : fields) {
        if (!AddArgument(field, key)) return false;
      }
      return true;
    }
    if (kind == fields_.constant) {
      key->insert(key->end(), {kTensorConstant, shared_.Of(fields_.type(node))});
      operands_.push_back(kConstant);
      return true;
    }
    if (kind == fields_.global) {
      is_own_ = true;
      key->insert(key->end(), {kOther, kNone, reinterpret_cast<int64_t>(node)});
      return true;
    }
    const bool plain = kind == fields_.shape_expr || kind == fields_.integer ||
                       kind == fields_.real || kind == fields_.text;
    if (plain) key->insert(key->end(), {kOther, shared_.Of(arg)});
    return plain;
  }

  // Number of the variable that a call annotates, kNone when it does not.
  int64_t Source(const Object* call, const Object* annotation) const {
    if (call == nullptr || Node(fields_.op(call)) != annotation) return kNone;
    const Array<Any> args = fields_.args(call).cast<Array<Any>>();
    if (args.empty()) return kNone;
    const auto found = numbers_.find(Node(args[0]));
    return found == numbers_.end() ? kNone : found->second;
  }

  const Fields& fields_ = Fields::Get();
  Numbers& shared_;
  Ints handles_, hidden_, first_, sources_, asked_, named_, like_, classes_of_calls_, operands_;
  Ints begin_{0};
  Ints type_numbers_;  // of all variables
  Ints key_;  // of the present call
  bool is_own_ = false;  // whether that mentions what is of its module only
  std::map<Ints, int64_t> classes_, annotations_;
  std::unordered_map<int64_t, int64_t> calls_;  // by class, the first one
  std::unordered_map<Ints, int64_t, HashInts> own_calls_;
  std::unordered_map<const Object*, int64_t> numbers_;
  std::unordered_map<const Object*, int64_t> types_;  // their classes
  std::string said_;  // names of the variables, a zero behind each
  std::unordered_set<std::string> names_;
};

Array<Any> Survey(const ObjectRef& function, const ObjectRef& annotation,
                  const Array<String>& names) {
  const HeldNumbers held;
  return Surveyor(&held.numbers, names).Run(function, annotation);
}

}  // namespace
}  // namespace tvm_distir

TVM_FFI_DLL_EXPORT_TYPED_FUNC(survey, tvm_distir::Survey);
