#pragma once
#include <array>
#include <bitset>
#include <cstring>
#include <span>

#include "fuzz_input.hpp"
#include "vpmu/env.hpp"
#include "vpmu/pebs.hpp"

namespace vpmu::fuzz {

/// A guest with four pages of RAM, of which some are missing or read only. It counts what the PMU asks for, and lets a
/// derived class judge each write.
class PagedGuest : public GuestEnv {
 public:
  static constexpr unsigned page_count = 4;
  static constexpr std::uint64_t first_page = 0xFFFF'8000'0000'0000;
  static constexpr std::uint64_t ram_bytes = page_count * page_size;

  std::array<std::byte, ram_bytes> memory{};
  std::bitset<page_count> missing, read_only;
  bool fail_writes{};  ///< As if another CPU had taken the page away after the probe.
  std::uint64_t pmis{};

  AccessResult read_linear(GuestLinear at, std::span<std::byte> out) override {
    if (auto fault = check(at, out.size(), AccessKind::read)) return fault;
    std::memcpy(out.data(), memory.data() + (at.value() - first_page), out.size());
    return {};
  }
  AccessResult write_linear(GuestLinear at, std::span<const std::byte> in) override {
    if (fail_writes) return AccessFault{.address = at};
    if (auto fault = check(at, in.size(), AccessKind::write)) return fault;
    judge(at.value(), in);
    std::memcpy(memory.data() + (at.value() - first_page), in.data(), in.size());
    return {};
  }
  AccessResult probe_linear(GuestLinear at, std::uint64_t size, AccessKind kind) override {
    return check(at, size, kind);
  }
  std::uint64_t tsc() override { return 0x1122'3344; }
  void request_pmi() override { ++pmis; }

  /// What is in RAM there.
  [[nodiscard]] std::uint64_t word(std::uint64_t at) const {
    std::uint64_t value = 0;
    require(at - first_page <= ram_bytes - 8, "an area that was read is in RAM");
    std::memcpy(&value, memory.data() + (at - first_page), 8);
    return value;
  }

 protected:
  ~PagedGuest() = default;
  /// Before each write that succeeds.
  virtual void judge(std::uint64_t at, std::span<const std::byte> in) = 0;

 private:
  [[nodiscard]] AccessResult check(GuestLinear at, std::uint64_t size, AccessKind kind) const {
    require(size != 0 && size <= max_record_size, "no access is larger than a record");
    require(is_canonical(at.value(), 48) && is_canonical(at.value() + size - 1, 48), "every access is canonical");
    for (std::uint64_t done = 0; done < size; ++done) {
      const std::uint64_t page = (at.value() + done - first_page) / page_size;
      if (page >= page_count || missing[page]) return AccessFault{.address = at + done};
      if (kind == AccessKind::write && read_only[page]) return AccessFault{.address = at + done, .error_code = 3};
    }
    return {};
  }
};

}  // namespace vpmu::fuzz
