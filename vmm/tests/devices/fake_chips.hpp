#pragma once
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "devices/interrupt_line.hpp"
#include "devices/port_bus.hpp"
#include "devices/stop_requests.hpp"

namespace vmm::test {

class FakeLine final : public InterruptLine {
 public:
  void set(LineLevel level) override { levels.push_back(level); }
  [[nodiscard]] bool high() const { return !levels.empty() && levels.back() == LineLevel::high; }
  std::vector<LineLevel> levels;
};

class FakeMachine final : public StopRequests {
 public:
  void request_stop(StopReason reason) override { requests.push_back(reason); }
  std::vector<StopReason> requests;
};

/// One IN of `Width` as a guest would see it.
template <class Width>
Width in(PortDevice& device, std::uint16_t port) {
  auto value = static_cast<Width>(~Width{0});
  device.port_read(port, std::as_writable_bytes(std::span{&value, 1}));
  return value;
}

/// One OUT.
template <class Width>
void out(PortDevice& device, std::uint16_t port, Width value) {
  device.port_write(port, std::as_bytes(std::span{&value, 1}));
}

/// Gives `to` the saved state of `from`.
inline void copy_state(PortDevice& from, PortDevice& to) {
  ByteWriter out;
  from.save(out);
  const Bytes image = out.take();
  ASSERT_FALSE(image.empty()) << "it has a state";
  ByteReader in{image};
  to.restore(in);
  EXPECT_TRUE(in.done()) << "all of it is read";
}

}  // namespace vmm::test
