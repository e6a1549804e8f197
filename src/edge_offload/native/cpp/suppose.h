// Infers results of operators that are in no table. They are taken as correct if that was so for a call of the same form, or if
// no other result is possible. They are sent with the call, and the executor compares them before any result is used.
#pragma once
#include "survey.h"

namespace edge_offload {

// Form of a call: its key without integers, and the layouts of its operands. Calls that differ only in sizes have one form.
inline std::string form_of(const Key& key) {
  std::string form(key.view());
  size_t at = sizeof(void*);
  const auto count = [&] { uint32_t n; std::memcpy(&n, &form[at], 4); at += 4; return n; };
  const auto clear = [&](size_t integers) { std::memset(form.data() + at, 0, 8 * integers); at += 8 * integers; };
  while (at < form.size()) switch (form[at++]) {
    case 'T': { const size_t dims = static_cast<uint8_t>(form[at + 2]); at += 3; clear(2 * dims + 2); ++at; break; }
    case 'P': { const size_t dims = static_cast<uint8_t>(form[at + 1]); at += 2; clear(dims); break; }
    case 'I': clear(1); break;
    case 'V': clear(count()); break;
    case 'X': at += count(); break;
    case 'L': at += 4; break;
    case 'S': case 'B': ++at; break;
    case 'W': at += 3; break;
    case 'F': case 'G': at += 8; break;
    case 'Z': at += 16; break;
  }
  form.push_back(static_cast<char>(layouts_needed(key)));
  return form;
}

// Returns true if the result is the first operand, written in place.
inline bool is_in_place(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  if (schema.returns().size() != 1 || schema.arguments().empty() || op.hasTag(at::Tag::inplace_view)) return false;
  const auto& name = schema.name();
  const auto* written = schema.arguments()[0].alias_info();
  return written && written->isWrite() && schema.returns()[0].alias_info() && name.back() == '_' && name[name.size() - 2] != '_' &&
         name.rfind("aten::resize", 0) != 0 && name.rfind("aten::set", 0) != 0;
}

// Returns true if a call requests a quantized dtype: the device has none, but meta kernels do not refuse it.
inline bool is_quantizing(const c10::OperatorHandle& op, const Stack& stack, size_t first) {
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size() && first + i < stack.size(); ++i) {
    const auto& value = stack[first + i];
    if (arguments[i].real_type()->kind() == c10::TypeKind::ScalarTypeType && value.isInt() &&
        c10::isQIntType(static_cast<at::ScalarType>(value.toInt())))
      return true;
  }
  return false;
}

// Way to infer results without an earlier call of the form; kWays: none. In place: the meta kernel. Element-wise: torch's
// iterator, if all operands are tensors or in row order. A single new tensor from operands in row order: sizes of the meta
// kernel. If only its layout differs, kernels use the actual one; the robot refers to it by the inferred one.
inline int way_at_once(const c10::OperatorHandle& op, const Key& key) {
  if (is_in_place(op)) return kMeta;
  const auto& schema = op.schema();
  const auto layout = layout_of(key);
  const bool rule = rule_of(schema) != nullptr;
  if (op.hasTag(at::Tag::pointwise) && !rule) return layout == kRows || (layout < kEmpty && !numbers_of(schema)) ? kRule : kWays;
  const auto& results = schema.returns();
  const bool one = results.size() == 1 && results[0].type()->kind() == c10::TypeKind::TensorType && !results[0].alias_info();
  return one && layout == kRows ? (rule ? kRule : kMeta) : kWays;
}

// Inference of one call's results; if none is taken, each way is compared with the server's response.
class Supposed {
 public:
  bool infer_results(const c10::OperatorHandle& op, const Stack& stack, size_t first, const Key& key, std::vector<Return>* returns) {
    auto& s = state();
    if (!s.inference.supposes || s.inference.never_supposed.count(&op.schema())) return false;
    form_ = form_of(key);
    auto& verdicts = s.inference.supposed[form_];
    const int at_once = is_quantizing(op, stack, first) ? kWays : way_at_once(op, key);
    for (int way : {kRule, kNumbers, kMeta}) {
      const bool supposed = way == at_once && verdicts[way] != kWrong;
      if ((verdicts[way] != kRight && !supposed) || !edge_offload::infer_results(op, stack, first, key, way, returns)) continue;
      if (verdicts[way] == kRight || is_in_place(op) || (*returns)[0].outs[0].kind == Out::kNew) return true;
    }
    for (int way = 0; way < kWays; ++way) predicted_[way] = edge_offload::infer_results(op, stack, first, key, way, &guesses_[way]);
    return false;
  }
  void judge(const std::vector<Return>& returns) {
    if (form_.empty()) return;
    auto& verdicts = state().inference.supposed[form_];
    for (int way = 0; way < kWays; ++way)
      if (predicted_[way] && verdicts[way] != kWrong) verdicts[way] = same(guesses_[way], returns) ? kRight : kWrong;
  }

 private:
  enum : int8_t { kRight = 1, kWrong = -1 };
  std::string form_;
  bool predicted_[kWays] = {};
  std::vector<Return> guesses_[kWays];
};

}  // namespace edge_offload
