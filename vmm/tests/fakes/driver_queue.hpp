#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <span>

#include "memory/guest_memory.hpp"
#include "virtio/device.hpp"

namespace vmm::test {

/// A virtqueue whose test plays both the guest's driver and the device.
class DriverQueue {
 public:
  struct Descriptor {
    std::uint64_t address;
    std::uint32_t bytes;
    std::uint16_t flags, next;
  };
  static constexpr std::uint16_t next = 1, write = 2, indirect = 4;

  DriverQueue(const GuestMemory& memory, std::uint64_t at, std::uint16_t size)
      : memory_{&memory},
        ring_{.size = size,
              .descriptors = vpmu::GuestPhysical{at},
              .available = vpmu::GuestPhysical{at + 0x4000},
              .used = vpmu::GuestPhysical{at + 0x6000}} {}

  [[nodiscard]] const virtio::Ring& ring() const { return ring_; }
  void describe(std::uint16_t index, Descriptor descriptor) const {
    put(ring_.descriptors.value() + std::uint64_t{16} * index, descriptor);
  }
  void describe_in(std::uint64_t table, std::uint16_t index, Descriptor descriptor) const {
    put(table + std::uint64_t{16} * index, descriptor);
  }
  /// As the driver: makes one more buffer available.
  void offer(std::uint16_t head) {
    put(ring_.available.value() + 4 + std::uint64_t{2} * (available_ % ring_.size), head);
    set_available(static_cast<std::uint16_t>(available_ + 1));
  }
  void set_available(std::uint16_t index) {
    available_ = index;
    EXPECT_TRUE(memory_->store<std::uint16_t>(ring_.available + 2, index));
  }
  /// As the device: returns a buffer as used.
  void answer(std::uint32_t id, std::uint32_t bytes = 0) {
    put(ring_.used.value() + 4 + std::uint64_t{8} * (used_ % ring_.size), std::array{id, bytes});
    set_used(static_cast<std::uint16_t>(used_ + 1));
  }
  void set_used(std::uint16_t index) {
    used_ = index;
    EXPECT_TRUE(memory_->store<std::uint16_t>(ring_.used + 2, index));
  }
  [[nodiscard]] std::uint16_t used() const { return memory_->load<std::uint16_t>(ring_.used + 2).value(); }

  template <class T>
  void put(std::uint64_t at, const T& value) const {
    EXPECT_TRUE(memory_->write(vpmu::GuestPhysical{at}, std::as_bytes(std::span{&value, 1})));
  }

 private:
  const GuestMemory* memory_;
  virtio::Ring ring_;
  std::uint16_t available_{}, used_{};
};

}  // namespace vmm::test
