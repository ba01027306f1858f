#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <vector>

#include "vpmu/address.hpp"
#include "vpmu/env.hpp"

namespace vpmu::test {

/// One access or request of the PMU.
struct Access {
  enum class Kind : std::uint8_t { read, write, probe_read, probe_write, tsc, pmi };
  Kind kind{};
  GuestLinear at;
  std::uint64_t size{};
  friend bool operator==(const Access&, const Access&) = default;
};

/// Page-fault error code bits. SDM 3A 4.7.
inline constexpr std::uint32_t fault_present = 1U << 0;
inline constexpr std::uint32_t fault_write = 1U << 1;

/// How a page of linear address space is mapped.
enum class Mapping : std::uint8_t {
  read_write,
  read_only,
  hole,  ///< Mapped by the page tables, but not to RAM.
};

/// A guest of a few pages, which records every access in order.
class RecordingEnv final : public GuestEnv {
 public:
  std::vector<Access> log;
  std::uint64_t tsc_now{0x7000};
  unsigned pmis{};

  void map(GuestLinear at, std::uint64_t bytes, Mapping mapping = Mapping::read_write) {
    const std::uint64_t span = page_offset(at) + bytes;
    for (std::uint64_t done = 0; done < span; done += page_size) pages_[page_of(at).value() + done].mapping = mapping;
  }
  void unmap(GuestLinear at) { pages_.erase(page_of(at).value()); }

  [[nodiscard]] std::uint64_t peek(GuestLinear at) const {
    std::uint64_t word = 0;
    for (unsigned i = 0; i < 8; ++i) {
      const GuestLinear byte_at = at + i;
      const std::byte value = pages_.at(page_of(byte_at).value()).bytes[page_offset(byte_at)];
      word |= std::to_integer<std::uint64_t>(value) << (8 * i);
    }
    return word;
  }
  void poke(GuestLinear at, std::uint64_t word) {
    for (unsigned i = 0; i < 8; ++i) {
      const GuestLinear byte_at = at + i;
      pages_.at(page_of(byte_at).value()).bytes[page_offset(byte_at)] = static_cast<std::byte>(word >> (8 * i));
    }
  }

  AccessResult read_linear(GuestLinear at, std::span<std::byte> out) override {
    log.push_back({Access::Kind::read, at, out.size()});
    if (auto fault = check(at, out.size(), AccessKind::read)) return fault;
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = byte(at + i);
    return {};
  }
  AccessResult write_linear(GuestLinear at, std::span<const std::byte> in) override {
    log.push_back({Access::Kind::write, at, in.size()});
    if (auto fault = check(at, in.size(), AccessKind::write)) return fault;
    for (std::size_t i = 0; i < in.size(); ++i) byte(at + i) = in[i];
    return {};
  }
  AccessResult probe_linear(GuestLinear at, std::uint64_t size, AccessKind kind) override {
    log.push_back({kind == AccessKind::read ? Access::Kind::probe_read : Access::Kind::probe_write, at, size});
    return check(at, size, kind);
  }
  std::uint64_t tsc() override {
    log.push_back({Access::Kind::tsc, {}, 0});
    return tsc_now;
  }
  void request_pmi() override {
    log.push_back({Access::Kind::pmi, {}, 0});
    ++pmis;
  }

 private:
  struct Page {
    Mapping mapping{Mapping::read_write};
    std::array<std::byte, page_size> bytes{};
  };

  std::byte& byte(GuestLinear at) { return pages_.at(page_of(at).value()).bytes[page_offset(at)]; }

  [[nodiscard]] AccessResult check(GuestLinear at, std::uint64_t size, AccessKind kind) const {
    const std::uint32_t write = kind == AccessKind::write ? fault_write : 0;
    for (std::uint64_t done = 0; done < size;) {
      const GuestLinear here = at + done;
      const auto page = pages_.find(page_of(here).value());
      if (page == pages_.end())
        return AccessFault{.address = here, .error_code = write, .not_memory = !is_canonical(here.value(), 48)};
      if (page->second.mapping == Mapping::hole) return AccessFault{.address = here, .not_memory = true};
      if (page->second.mapping == Mapping::read_only && write != 0)
        return AccessFault{.address = here, .error_code = fault_write | fault_present};
      done += page_size - page_offset(here);
    }
    return {};
  }

  std::map<std::uint64_t, Page> pages_;
};

}  // namespace vpmu::test
