// Four simulated devices, on PyTorch's spare backend or (-DSIM_TYPE=CUDA) in the place of CUDA. The Python guard class reports one device only, and autograd
// queues work per device, so a backward pass over two simulated devices needs this guard in C++.
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#ifndef SIM_TYPE
#define SIM_TYPE PrivateUse1
#endif

namespace {

thread_local c10::DeviceIndex current = 0;

struct SimGuard final : public c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType kType = c10::DeviceType::SIM_TYPE;
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device d) const override {
    c10::Device old(kType, current);
    current = d.index();
    return old;
  }
  c10::Device getDevice() const override { return c10::Device(kType, current); }
  void setDevice(c10::Device d) const override { current = d.index(); }
  void uncheckedSetDevice(c10::Device d) const noexcept override { current = d.index(); }
  c10::Stream getStream(c10::Device d) const override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream getNewStream(c10::Device d, int) const override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream exchangeStream(c10::Stream s) const override { return c10::Stream(c10::Stream::DEFAULT, s.device()); }
  c10::DeviceIndex deviceCount() const noexcept override { return 4; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
};

c10::impl::DeviceGuardImplRegistrar registered(c10::DeviceType::SIM_TYPE, new SimGuard());

}  // namespace
