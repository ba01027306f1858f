#pragma once
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fakes/driver_queue.hpp"

namespace vmm::test {

/// A driver's queue with buffers for text that is sent and received.
class DriverRing : public DriverQueue {
 public:
  /// Rings and buffers are at `at`, below `at` + 1 MiB.
  DriverRing(const GuestMemory& memory, std::uint64_t at, std::uint16_t size)
      : DriverQueue{memory, at, size}, memory_{&memory}, buffers_{at + first_buffer} {}

  /// Offers a buffer that the device reads.
  void send(std::span<const std::byte> bytes) {
    const std::uint64_t at = next_buffer(bytes.size());
    EXPECT_TRUE(memory_->write(vpmu::GuestPhysical{at}, bytes));
    add({.address = at, .bytes = static_cast<std::uint32_t>(bytes.size()), .flags = 0, .next = 0});
  }
  /// Offers a buffer that the device writes.
  void give_room(std::uint32_t bytes) {
    add({.address = next_buffer(bytes), .bytes = bytes, .flags = write, .next = 0});
  }
  /// From now on buffers may reuse the room of earlier ones.
  void forget_buffers() { buffers_ = ring().descriptors.value() + first_buffer; }

  struct Used {
    std::uint32_t id, bytes;
    bool operator==(const Used&) const = default;
  };
  /// The next buffer that the device has returned.
  std::optional<Used> take() {
    if (used() == taken_) return std::nullopt;
    const auto at = ring().used + 4 + std::uint64_t{8} * (taken_++ % ring().size);
    return Used{.id = *memory_->load<std::uint32_t>(at), .bytes = *memory_->load<std::uint32_t>(at + 4)};
  }
  /// The text in a returned buffer.
  [[nodiscard]] std::string text(const Used& used) const {
    std::string text(used.bytes, '\0');
    const auto at = *memory_->load<std::uint64_t>(ring().descriptors + std::uint64_t{16} * used.id);
    EXPECT_TRUE(memory_->read(vpmu::GuestPhysical{at}, std::as_writable_bytes(std::span{text})));
    return text;
  }

 private:
  static constexpr std::uint64_t first_buffer = 0x10000;

  std::uint64_t next_buffer(std::size_t bytes) { return std::exchange(buffers_, (buffers_ + bytes + 63) & ~63ULL); }
  void add(Descriptor descriptor) {
    describe(next_descriptor_, descriptor);
    offer(std::exchange(next_descriptor_, static_cast<std::uint16_t>((next_descriptor_ + 1) % ring().size)));
  }

  const GuestMemory* memory_;
  std::uint64_t buffers_;
  std::uint16_t taken_{}, next_descriptor_{};
};

/// Records the events of a device.
class HeardEvents final : public virtio::DeviceEvents {
 public:
  void used(unsigned queue) override { used_queues.push_back(queue); }
  void configuration_changed() override {}
  void written(vpmu::GuestPhysical at, std::uint64_t bytes) override { writes.push_back({at, bytes}); }
  void broken(const Error& error) override { errors.push_back(describe(error)); }
  void failed(Error error) override { errors.push_back(describe(error)); }
  void attention() override { ++attentions; }

  std::vector<unsigned> used_queues;
  std::vector<MemoryRange> writes;
  std::vector<std::string> errors;
  std::atomic<unsigned> attentions{};
};

}  // namespace vmm::test
