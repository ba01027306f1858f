#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "kvm/fd.hpp"
#include "kvm/system.hpp"
#include "kvm/vcpu.hpp"
#include "kvm/vm.hpp"
#include "support/result.hpp"
#include "vpmu/paging.hpp"

namespace vmm::test {

/// RAM of a test VM, from guest-physical address 0; everything above is a hole.
class FlatRam final : public vpmu::PhysicalWords {
 public:
  static Result<FlatRam> create(std::size_t bytes);

  std::optional<std::uint64_t> read_word(vpmu::GuestPhysical at, unsigned bytes) override;
  bool exchange_word(vpmu::GuestPhysical at, unsigned bytes, std::uint64_t expected, std::uint64_t desired) override;

  [[nodiscard]] std::span<std::byte> bytes() const {
    return {static_cast<std::byte*>(mapping_.base()), mapping_.size()};
  }
  /// `at` and the word must lie in RAM.
  template <class Word>
  void poke(std::uint64_t at, Word word) {
    std::memcpy(bytes().subspan(at, sizeof word).data(), &word, sizeof word);
  }
  template <class Word>
  [[nodiscard]] Word peek(std::uint64_t at) const {
    Word word;
    std::memcpy(&word, bytes().subspan(at, sizeof word).data(), sizeof word);
    return word;
  }

 private:
  explicit FlatRam(Mapping mapping) : mapping_{std::move(mapping)} {}
  Mapping mapping_;
};

/// RAM as a page walk sees it, but the walk's changes are kept here and do not reach RAM.
class Overlay final : public vpmu::PhysicalWords {
 public:
  explicit Overlay(FlatRam& ram) : ram_{ram} {}
  std::optional<std::uint64_t> read_word(vpmu::GuestPhysical at, unsigned bytes) override {
    const auto changed = changed_.find(at);
    return changed == changed_.end() ? ram_.read_word(at, bytes) : changed->second;
  }
  bool exchange_word(vpmu::GuestPhysical at, unsigned bytes, std::uint64_t expected, std::uint64_t desired) override {
    if (read_word(at, bytes) != expected) return false;
    changed_[at] = desired;
    return true;
  }
  [[nodiscard]] const std::map<vpmu::GuestPhysical, std::uint64_t>& changed() const { return changed_; }

 private:
  FlatRam& ram_;
  std::map<vpmu::GuestPhysical, std::uint64_t> changed_;
};

/// What the vCPU of a PagingVm can do.
struct PagingFeatures {
  std::uint8_t physical_width{};
  bool gigabyte_pages{}, smep{}, smap{}, la57{}, execute_disable{};
  bool is_amd_host{};
};

/// A VM with one vCPU of an Intel-type CPU and a little RAM: an oracle for page walks.
class PagingVm {
 public:
  static Result<std::unique_ptr<PagingVm>> create(const System& system, std::size_t ram_bytes);

  /// Whether this KVM walks page tables at all outside IA-32e mode; one that only emulates such guests may not.
  /// Overwrites RAM.
  Result<bool> walks_legacy_tables();

  /// Loads control registers for `state` and segments of the matching width at `privilege` (flat, no descriptor
  /// tables).
  Result<void> load(const vpmu::PagingState& state, vpmu::PagingPrivilege privilege);

  FlatRam ram;
  PagingFeatures features;
  Vm vm;
  Vcpu vcpu;

 private:
  PagingVm(FlatRam r, const PagingFeatures& f, Vm m, Vcpu c)
      : ram{std::move(r)}, features{f}, vm{std::move(m)}, vcpu{std::move(c)} {}
};

}  // namespace vmm::test
