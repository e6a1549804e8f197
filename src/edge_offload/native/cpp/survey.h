// Survey of operators whose results are inferred correctly: asks the server for every new call, and compares.
#pragma once
#include "rules.h"

namespace edge_offload {

inline bool same(const Out& a, const Out& b) {
  if (a.kind != b.kind || a.kind == Out::kUndefined) return a.kind == b.kind;
  return a.ref == b.ref && a.type == b.type && a.flags == b.flags && a.sizes == b.sizes && a.strides == b.strides && a.offset == b.offset &&
         a.bytes == b.bytes;
}
inline bool same(const std::vector<Return>& a, const std::vector<Return>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Return& x, const Return& y) {
    return x.kind == y.kind && x.kind != Return::kValue &&
           std::equal(x.outs.begin(), x.outs.end(), y.outs.begin(), y.outs.end(), [](const Out& p, const Out& q) { return same(p, q); });
  });
}

// Predictions of one call, one per method; compared with the server's result.
class Surveyed {
 public:
  void guess(const c10::OperatorHandle& op, const Stack& stack, size_t first, const Key& key) {
    name_ = c10::toString(op.operator_name());
    layout_ = layout_of(key);
    for (int way = 0; way < kWays; ++way) predicted_[way] = infer_results(op, stack, first, key, way, &guesses_[way]);
  }
  void judge(const std::vector<Return>& returns) {
    if (name_.empty()) return;
    for (int way = 0; way < kWays; ++way) {
      if (!predicted_[way]) continue;
      auto& counts = state().inference.surveyed[{name_, layout_, way}];
      ++(same(guesses_[way], returns) ? counts.first : counts.second);
    }
  }

 private:
  std::string name_;
  Layout layout_ = kRows;
  bool predicted_[kWays] = {};
  std::vector<Return> guesses_[kWays];
};

}  // namespace edge_offload
