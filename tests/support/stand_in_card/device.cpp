// The stand-in cards as torch sees them: their memory, CUDA's device guard and hooks, and the door for Python.
#include "card.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>

namespace card {
namespace {

// Bytes of one card.
struct Held {
  size_t now = 0, peak = 0, most = SIZE_MAX;
};

std::mutex lock;
std::array<Held, kMost> held;
std::map<const char*, size_t> pinned;
std::atomic<int> count{0};
int64_t (*python)(const char*, int64_t) = nullptr;
thread_local int here = 0;

struct Block {
  void* data;
  size_t bytes;
  int card;
};

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  freed(static_cast<const char*>(block->data), block->bytes);
  {
    std::lock_guard<std::mutex> guard(lock);
    held[block->card].now -= block->bytes;
  }
  std::memset(block->data, 0xFF, block->bytes);
  c10::free_cpu(block->data);
  delete block;
}

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(here));
    if (!bytes) return {nullptr, device};
    {
      std::lock_guard<std::mutex> guard(lock);
      Held& card = held[here];
      TORCH_CHECK_WITH(OutOfMemoryError, card.now + bytes <= card.most, "CUDA out of memory. Tried to allocate ", bytes, " bytes.");
      card.now += bytes;
      card.peak = std::max(card.peak, card.now);
    }
    void* data = c10::alloc_cpu(bytes);
    std::memset(data, 0xFF, bytes);
    return {data, new Block{data, bytes, here}, &release, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

void unpin(void* data) {
  {
    std::lock_guard<std::mutex> guard(lock);
    pinned.erase(static_cast<const char*>(data));
  }
  c10::free_cpu(data);
}

struct Pinned final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = c10::alloc_cpu(bytes ? bytes : 1);
    std::lock_guard<std::mutex> guard(lock);
    pinned[static_cast<const char*>(data)] = bytes;
    return {data, data, &unpin, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &unpin; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  static c10::Device on(int card) { return {c10::kCUDA, static_cast<c10::DeviceIndex>(card)}; }
  static int of(c10::Device d) { return d.index() < 0 ? here : d.index(); }
  c10::Device exchangeDevice(c10::Device d) const override { return on(std::exchange(here, of(d))); }
  c10::Device getDevice() const override { return on(here); }
  void setDevice(c10::Device d) const override { here = of(d); }
  void uncheckedSetDevice(c10::Device d) const noexcept override { here = of(d); }
  c10::Stream getStream(c10::Device d) const override { return c10::Stream(c10::Stream::UNSAFE, on(of(d)), current_stream(of(d))); }
  c10::Stream getDefaultStream(c10::Device d) const override { return c10::Stream(c10::Stream::UNSAFE, on(of(d)), 0); }
  c10::Stream exchangeStream(c10::Stream s) const override {
    return c10::Stream(c10::Stream::UNSAFE, s.device(), exchange_stream(s.device_index(), s.id()));
  }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(count.load()); }
  void record(void** event, const c10::Stream& s, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = new Mark;
    *static_cast<Mark*>(*event) = mark_of(s.device_index(), s.id());
  }
  void block(void* event, const c10::Stream& s) const override {
    if (event) wait_for(s.device_index(), s.id(), *static_cast<Mark*>(event));
  }
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Mark*>(event); }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream& s) const override { synchronize(s.device_index(), s.id()); }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};

struct Hooks final : at::CUDAHooksInterface {
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(count.load()); }
  int getNumGPUs() const override { return count.load(); }
  c10::DeviceIndex current_device() const override { return static_cast<c10::DeviceIndex>(here); }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(here); }
  bool isPinnedPtr(const void* data) const override { return card::is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return card::pinned_memory(); }
  c10::Allocator* getCUDADeviceAllocator() const override { return card::memory(); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return at::detail::getDefaultCPUGenerator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::detail::createCPUGenerator(); }
  void deviceSynchronize(c10::DeviceIndex card) const override { card::synchronize(card, -1); }
};

}  // namespace

int64_t note(const char* kind, int64_t earlier) { return python ? python(kind, earlier) : -1; }
int current_card() { return here; }

c10::Allocator* memory() {
  static Memory made;
  return &made;
}

c10::Allocator* pinned_memory() {
  static Pinned made;
  return &made;
}

bool is_pinned(const void* data) {
  std::lock_guard<std::mutex> guard(lock);
  auto found = pinned.upper_bound(static_cast<const char*>(data));
  return found != pinned.begin() && (--found, static_cast<const char*>(data) < found->first + found->second);
}

}  // namespace card

extern "C" {
void card_open(int cards, size_t bytes, int64_t (*told)(const char*, int64_t)) {
  c10::SetAllocator(c10::kCUDA, card::memory());
  c10::impl::DeviceGuardImplRegistrar registered(c10::kCUDA, new card::Guard);
  // torch asked for CUDA's hooks as it was imported, and keeps the plain ones: they have no fields, so ours fit there.
  static_assert(sizeof(card::Hooks) == sizeof(at::CUDAHooksInterface));
  new (const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks())) card::Hooks;
  card::count = cards, card::python = told;
  for (auto& one : card::held) one.most = bytes;
  card::take_operators();
}
int64_t card_new_stream(int card) { return card::new_stream(card); }
int card_exchange(int card) { return std::exchange(card::here, card); }
int64_t card_exchange_stream(int card, int64_t stream) { return card::exchange_stream(card, stream); }
int64_t card_current_stream(int card) { return card::current_stream(card); }
void* card_record(int card, int64_t stream) { return new card::Mark(card::mark_of(card, stream)); }
void card_forget(void* mark) { delete static_cast<card::Mark*>(mark); }
void card_wait(int card, int64_t stream, void* mark) { card::wait_for(card, stream, *static_cast<card::Mark*>(mark)); }
void card_reach(void* mark) { card::reach(*static_cast<card::Mark*>(mark)); }
void card_synchronize(int card) { card::synchronize(card); }
void card_pin(const char* data, size_t bytes) {
  std::lock_guard<std::mutex> guard(card::lock);
  if (bytes) card::pinned[data] = bytes;
  else card::pinned.erase(data);
}
size_t card_bytes(int card, int peak) { return peak ? card::held[card].peak : card::held[card].now; }
void card_reset_peak(int card) { card::held[card].peak = card::held[card].now; }
void card_limit(size_t bytes) {
  for (auto& one : card::held) one.most = bytes;
}
size_t card_on_the_way(int card) { return card::on_the_way(card); }
}
