// Operators of the stand-in cards: each runs the CPU's kernel on the very memory of its tensors. A tensor of another
// card or of the host among them is the error that it is on a real one.
#include "card.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <cstring>
#include <set>
#include <string>
#include <torch/library.h>
#include <unordered_map>

namespace {

using at::Tensor;
using c10::IValue;

const c10::DispatchKeySet kOnCard(c10::DispatchKey::CUDA);
// Operators whose result has a size that the host must know: CUDA waits in them.
const std::set<std::string> kWaits{"aten::nonzero", "aten::masked_select", "aten::equal", "aten::_unique2",
                                   "aten::unique_dim", "aten::unique_consecutive", "aten::bincount"};

c10::Device on(int card) { return {c10::kCUDA, static_cast<c10::DeviceIndex>(card)}; }

card::Part part_of(const Tensor& t) {
  size_t items = t.numel() ? 1 : 0;
  for (int64_t d = 0; items && d < t.dim(); d++) items += (t.size(d) - 1) * t.stride(d);
  auto* storage = t.storage().unsafeGetStorageImpl();
  return {static_cast<char*>(storage->mutable_data()) + t.storage_offset() * t.itemsize(), items * t.itemsize(), storage};
}

// The same values as a tensor of the host, which owns nothing.
Tensor on_host(const Tensor& t) {
  auto* data = t.storage().mutable_data();
  c10::Storage storage(c10::Storage::use_byte_size_t(), t.storage().nbytes(), c10::DataPtr(data, c10::Device(c10::kCPU)),
                       c10::GetCPUAllocator(), /*resizable=*/true);
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), t.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  made._set_conj(t.is_conj());
  made._set_neg(t.is_neg());
  return made;
}

Tensor with_storage(c10::Storage storage, const Tensor& like) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), kOnCard, like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  made._set_conj(like.is_conj());
  made._set_neg(like.is_neg());
  return made;
}

c10::Storage copied(const c10::Storage& source) {
  auto memory = card::memory()->allocate(source.nbytes());
  if (source.nbytes()) std::memcpy(memory.get(), source.data(), source.nbytes());
  card::made(card::current_card(), static_cast<const char*>(memory.get()), source.nbytes());
  return {c10::Storage::use_byte_size_t(), source.nbytes(), std::move(memory), card::memory(), true};
}

// The tensors of one call, and their twins on the host.
struct Call {
  std::string name;
  int card = -1;
  std::vector<std::pair<Tensor, Tensor>> twins;
  std::unordered_map<const void*, c10::Storage> storages;  // of the card, by those of the host

  explicit Call(std::string name) : name(std::move(name)) {}

  Tensor host(const Tensor& t, bool writes) {
    if (!t.defined()) return t;
    if (!t.is_cuda()) {
      bool index = name.rfind("aten::index", 0) == 0 || name.rfind("aten::_index", 0) == 0;
      if (t.dim() && !index) strangers.push_back(t.device());
      return t;
    }
    TORCH_CHECK(card < 0 || card == t.get_device(), "Expected all tensors to be on the same device, but ", name,
                " found at least two devices, ", on(card), " and ", t.device(), "!");
    card = t.get_device();
    if (t.scalar_type() == at::kBool && name.rfind("aten::index", 0) == 0 && !writes) card::note("wait: index by a mask");
    card::touched(card, part_of(t), writes);
    auto twin = on_host(t);
    storages[twin.storage().unsafeGetStorageImpl()] = t.storage();
    twins.emplace_back(t, twin);
    return twin;
  }

  IValue host(const IValue& value, bool writes) {
    if (value.isTensor()) return host(value.toTensor(), writes);
    if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& t : value.toTensorVector()) list.push_back(host(t, writes));
      return list;
    }
    if (value.isList() && value.toList().elementType()->kind() == c10::TypeKind::OptionalType) {
      c10::List<std::optional<Tensor>> list;
      for (const IValue& one : value.toListRef())
        list.push_back(one.isTensor() ? std::optional<Tensor>(host(one.toTensor(), writes)) : std::nullopt);
      return list;
    }
    if (value.isDevice() && value.toDevice().is_cuda()) {
      auto asked = value.toDevice();
      card = asked.has_index() ? asked.index() : card::current_card();
      return c10::Device(c10::kCPU);
    }
    return value;
  }

  std::vector<c10::Device> strangers;

  Tensor back(const Tensor& t) {
    if (!t.defined()) return t;
    for (auto& [own, twin] : twins)
      if (twin.is_same(t)) return own;
    auto* key = t.storage().unsafeGetStorageImpl();
    auto found = storages.find(key);
    if (found == storages.end()) found = storages.emplace(key, copied(t.storage())).first;
    return with_storage(found->second, t);
  }

  IValue back(const IValue& value) {
    if (value.isTensor()) return back(value.toTensor());
    if (!value.isTensorList()) return value;
    c10::List<Tensor> list;
    for (const Tensor& t : value.toTensorVector()) list.push_back(back(t));
    return list;
  }

  // What the kernel made larger is larger on the card too.
  void resized() {
    for (auto& [own, twin] : twins) {
      if (twin.storage().data() != own.storage().data()) {
        auto memory = copied(twin.storage());
        own.storage().set_nbytes(memory.nbytes());
        own.storage().set_data_ptr(std::move(memory.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks()));
      }
      if (own.sizes() != twin.sizes() || own.strides() != twin.strides())
        own.unsafeGetTensorImpl()->set_sizes_and_strides(twin.sizes(), twin.strides(), twin.storage_offset());
    }
  }
};

void on_the_host(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  Call call(op.schema().name());
  std::vector<IValue> inputs(stack->end() - arguments.size(), stack->end());
  stack->resize(stack->size() - arguments.size());
  for (size_t number = 0; number < inputs.size(); number++) {
    auto* alias = arguments[number].alias_info();
    stack->push_back(call.host(inputs[number], alias && alias->isWrite()));
  }
  if (call.card < 0) call.card = card::current_card();
  TORCH_CHECK(call.strangers.empty(), "Expected all tensors to be on the same device, but ", call.name,
              " found at least two devices, ", on(call.card), " and ", call.strangers.front(), "!");
  TORCH_CHECK(!card::current_stream(call.card), "The stand-in card computes on one stream only, and ", call.name, " ran on another.");
  if (kWaits.count(call.name)) card::note("wait: size of a result");
  c10::DeviceGuard guard(on(call.card));
  {
    at::AutoDispatchBelowADInplaceOrView below;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  call.resized();
  for (size_t number = stack->size() - op.schema().returns().size(); number < stack->size(); number++)
    (*stack)[number] = call.back((*stack)[number]);
}

Tensor& copy_(Tensor& to, const Tensor& given, bool non_blocking) {
  Tensor from = given.sizes() == to.sizes() ? given : given.expand(to.sizes());
  const Tensor& near = to.is_cuda() ? to : from;
  int card = near.get_device();
  auto [target, source] = std::pair(part_of(to), part_of(from));
  bool host = !to.is_cuda() || !from.is_cuda(), late = card::current_stream(card) || (host && !to.is_cuda());
  bool locked = host && card::is_pinned(to.is_cuda() ? source.begin : target.begin);
  bool plain = to.scalar_type() == from.scalar_type() && to.is_conj() == from.is_conj() && to.strides() == from.strides() && to.is_non_overlapping_and_dense();
  if (!to.numel()) return to;
  if (late && host && non_blocking && plain && (locked || to.is_cuda())) {
    if (!locked) card::note("copy of pageable memory");
    if (!card::current_stream(card)) card::touched(card, source, false);
    card::begin_copy(card, target, source, !locked || !card::current_stream(card));
    return to;
  }
  int home = from.is_cuda() ? from.get_device() : -1;
  if (late && !host && non_blocking && plain && home != card) {
    card::note("copy between cards");
    card::begin_copy(card, target, source, false, home);
    return to;
  }
  if (!host && home != card && card::current_stream(home)) {
    TORCH_CHECK(plain && non_blocking, "The stand-in card copies plain tensors to another card on a stream of their own.");
    card::begin_copy_between(home, card, target, source);
    return to;
  }
  bool blocks = host && (!non_blocking || (!locked && !to.is_cuda()));
  TORCH_CHECK(blocks || !card::current_stream(card), "The stand-in card copies plain tensors of pinned memory on a stream of their own.");
  if (blocks) {
    card::note(to.is_cuda() ? "wait: copy to the card" : "wait: copy to the host");
    card::synchronize(card, card::current_stream(card));
  } else if (host) {
    card::note(locked ? "copy of pinned memory" : "copy of pageable memory");
  } else if (to.get_device() != card || from.get_device() != card) {
    card::note("copy between cards");
  }
  card::touched(card, source, false);
  card::touched(to.is_cuda() ? to.get_device() : card, target, true);
  Tensor own = to.is_cuda() ? on_host(to) : to;
  at::AutoDispatchBelowADInplaceOrView below;
  own.copy_(from.is_cuda() ? on_host(from) : from);
  return to;
}

at::Scalar value_of(const Tensor& t) {
  card::note("wait: value");
  card::synchronize(t.get_device(), 0);
  card::touched(t.get_device(), part_of(t), false);
  return at::_local_scalar_dense(on_host(t));
}

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device> device,
             std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, card::memory(), kOnCard, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                     std::optional<at::Device> device, std::optional<bool>) {
  c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, card::memory(), kOnCard, c10::dtype_or_default(dtype));
}

Tensor& set_(Tensor& self, c10::Storage source, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  if (stride.size() == size.size()) {
    impl->set_sizes_and_strides(size, stride, offset);
  } else {
    impl->set_storage_offset(offset);
    impl->set_sizes_contiguous(size);
  }
  return self;
}

// The CPU's kernel where it is what torch takes there: by itself torch would look for CUDA's own.
Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask, double dropout,
                 bool causal, std::optional<double> scale, bool grouped) {
  bool fake = query.key_set().has(c10::DispatchKey::Python);  // of no values: torch cannot ask CUDA for its choice
  if (!fake && at::_fused_sdp_choice(query, key, value, mask, dropout, causal, scale, grouped) == 1)
    return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout, causal, mask, scale));
  return std::get<0>(at::_scaled_dot_product_attention_math(query, key, value, mask, dropout, causal, std::nullopt, scale, grouped));
}

}  // namespace

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_host>()); }

// Else torch would make the result of many operators itself and ask for their `out` variant: another way than the CPU's.
void card::take_operators() {
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    auto op = dispatcher.findSchema(name);
    if (name.getNamespace() == "aten" && op && op->hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
        !op->hasKernelForDispatchKey(c10::DispatchKey::CUDA))
      library.impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&on_the_host>());
  }
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("set_.source_Storage_storage_offset", &set_);
  m.impl("copy_", &copy_);
  m.impl("_local_scalar_dense", &value_of);
  m.impl("record_stream", [](Tensor&, c10::Stream) {});
}

TORCH_LIBRARY_IMPL(aten, AutogradCUDA, m) { m.impl("scaled_dot_product_attention", &attention); }
