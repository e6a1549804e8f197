// The key of a call: everything that the metadata of its results depends on, as bytes that the server can read too.
//
// A key is a sequence of items, one per argument of the schema, little-endian:
//   U             undefined tensor
//   T             device tensor: u8 dtype, u8 flags (1 conjugate, 2 negated), u8 dims, i64 sizes[], i64 strides[],
//                 i64 offset, i64 bytes of its storage, u8 number of its storage within the call
//   S             device storage: u8 number of its storage within the call
//   P             host tensor, sent with the call: u8 dtype, u8 dims, i64 sizes[]
//   W             host number, sent with the call: u8 kind (d, i, b, c), u8 dtype, u8 wrapped (a Python number)
//   N             none          I i64     F f64     B u8     Z f64 f64 (complex)     Y device
//   X u32 bytes   string        G i64 generator             L u32 count, items       V u32 count, i64[] (ints)
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

// The number of a generator of the device (guard.cpp).
extern "C" __attribute__((weak)) int64_t edge_offload_number(const c10::GeneratorImpl* generator);

namespace edge_offload {

constexpr auto kDevice = c10::DeviceType::CUDA;

inline bool on_device(const at::Tensor& tensor) { return tensor.device().type() == kDevice; }

struct Number {  // the value of a W item: 16 bytes on the wire
  char bytes[16] = {0};
};

class Key {
 public:
  c10::SmallVector<char, 512> bytes;
  c10::SmallVector<const at::Tensor*, 8> tensors;         // device tensors, in order: the T items
  c10::SmallVector<c10::StorageImpl*, 8> storages;        // distinct storages, numbered by first use
  c10::SmallVector<c10::StorageImpl*, 8> references;      // the storage of every T and S item, in order
  c10::SmallVector<at::Tensor, 2> payloads;               // host tensors, in order: the P items
  c10::SmallVector<Number, 2> numbers;                    // the W items
  int host_arrays = 0;                                    // host tensors that are not single numbers
  bool apart = false;                                     // f64 arguments are sent with the call, too: they change from step to step

  explicit Key(const void* identity) { put(identity); }

  std::string_view view() const { return {bytes.data(), bytes.size()}; }
  template <typename T>
  void put(const T& value) { std::memcpy(room(sizeof(T)), &value, sizeof(T)); }
  void tag(char kind) { bytes.push_back(kind); }
  void put_list(const int64_t* values, size_t count) { if (count) std::memcpy(room(count * 8), values, count * 8); }

  void storage(c10::StorageImpl* storage) {
    uint8_t number = 0;
    while (number < storages.size() && storages[number] != storage) ++number;
    if (number == storages.size()) storages.push_back(storage);
    references.push_back(storage);
    put(number);
  }

  void tensor(const at::Tensor& t) {
    if (!t.defined()) { tag('U'); return; }
    if (!on_device(t)) { host(t); return; }
    TORCH_CHECK(t.layout() == at::kStrided, "edge_offload: a ", t.layout(), " tensor is not supported on the device");
    auto* implementation = t.storage().unsafeGetStorageImpl();
    const auto sizes = t.sizes(), strides = t.strides();
    const size_t dims = sizes.size();
    const int64_t offset = t.storage_offset(), storage_bytes = implementation->nbytes();
    char* at = room(4 + 16 * dims + 16);  // most of the bytes of most keys: written in one go
    *at++ = 'T';
    *at++ = static_cast<char>(t.scalar_type());
    *at++ = static_cast<char>((t.is_conj() ? 1 : 0) | (t.is_neg() ? 2 : 0));
    *at++ = static_cast<char>(dims);
    for (size_t i = 0; i < dims; ++i, at += 8) std::memcpy(at, &sizes[i], 8);
    for (size_t i = 0; i < dims; ++i, at += 8) std::memcpy(at, &strides[i], 8);
    std::memcpy(at, &offset, 8);
    std::memcpy(at + 8, &storage_bytes, 8);
    storage(implementation);
    tensors.push_back(&t);
  }

  void host(const at::Tensor& t) {
    auto type = t.scalar_type();
    if (t.dim() == 0 && (c10::isIntegralType(type, false) || c10::isFloatingType(type) || type == at::kBool)) {
      Number number;
      char kind;
      if (type == at::kBool) { kind = 'b'; number.bytes[0] = t.item<bool>(); }
      else if (c10::isFloatingType(type)) { kind = 'd'; double v = t.item<double>(); std::memcpy(number.bytes, &v, 8); }
      else { kind = 'i'; int64_t v = t.item<int64_t>(); std::memcpy(number.bytes, &v, 8); }
      tag('W'); tag(kind); put(static_cast<uint8_t>(type));
      put(static_cast<uint8_t>(t.unsafeGetTensorImpl()->is_wrapped_number()));
      numbers.push_back(number);
      return;
    }
    TORCH_CHECK(t.device().is_cpu(), "edge_offload: a tensor on ", t.device(), " cannot be used with the virtual device");
    TORCH_CHECK(t.layout() == at::kStrided, "edge_offload: a ", t.layout(), " tensor is not supported on the device");
    if (t.dim() > 0) ++host_arrays;
    tag('P');
    put(static_cast<uint8_t>(type));
    put(static_cast<uint8_t>(t.dim()));
    put_list(t.sizes().data(), t.dim());
    payloads.push_back(t);
  }

  void value(const c10::IValue& v, const char* op) {
    if (v.isTensor()) tensor(v.toTensor());
    else if (v.isNone()) tag('N');
    else if (v.isInt()) { tag('I'); put(v.toInt()); }
    else if (v.isBool()) { tag('B'); put(static_cast<uint8_t>(v.toBool())); }
    else if (v.isDouble() && apart) {
      Number number;
      const double plain = v.toDouble();
      std::memcpy(number.bytes, &plain, 8);
      tag('W'); tag('d'); put(static_cast<uint8_t>(at::kDouble)); put(uint8_t{1});
      numbers.push_back(number);
    }
    else if (v.isDouble()) { tag('F'); put(v.toDouble()); }
    else if (v.isComplexDouble()) { tag('Z'); auto z = v.toComplexDouble(); put(z.real()); put(z.imag()); }
    else if (v.isString()) { const auto& s = v.toStringRef(); tag('X'); put(static_cast<uint32_t>(s.size())); if (!s.empty()) std::memcpy(room(s.size()), s.data(), s.size()); }
    else if (v.isDevice()) {
      TORCH_CHECK(v.toDevice().type() == kDevice && v.toDevice().index() <= 0,
                  "CUDA error: invalid device ordinal (the virtual device has one GPU, cuda:0)");
      tag('Y');
    }
    else if (v.isGenerator()) { tag('G'); put(edge_offload_number(v.toGenerator().unsafeGetGeneratorImpl())); }
    else if (v.isIntList()) {
      const auto list = v.toListRef();
      tag('V'); put(static_cast<uint32_t>(list.size()));
      for (const auto& item : list) put(item.toInt());
    }
    else if (v.isList()) {
      const auto& list = v.toListRef();
      tag('L'); put(static_cast<uint32_t>(list.size()));
      for (const auto& item : list) value(item, op);
    }
    else TORCH_CHECK(false, "edge_offload: ", op, " takes an argument of type ", v.tagKind(), ", which cannot be sent to the server");
  }

 private:
  char* room(size_t count) {
    const size_t before = bytes.size();
    bytes.resize_for_overwrite(before + count);
    return bytes.data() + before;
  }
};

}  // namespace edge_offload
