#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "exec/engine.hpp"
#include "exec/state/vector_state.hpp"
#include "memory/host_code.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/x86.hpp"

namespace vpmu::silicon {

/// RAM from guest-physical address 0 on.
class SmallRam final : public exec::Ram {
 public:
  explicit SmallRam(std::uint64_t pages) : bytes_(pages) {}

  std::byte* page(GuestPhysical at) override {
    return at.value() / page_size < bytes_.size() ? bytes_[at.value() / page_size].data() : nullptr;
  }
  void will_write(GuestPhysical) override {}
  std::optional<std::uint64_t> read_word(GuestPhysical at, unsigned size) override {
    if (page(at) == nullptr) return std::nullopt;
    std::uint64_t word{};
    std::memcpy(&word, page(at) + at.value() % page_size, size);
    return word;
  }
  bool exchange_word(GuestPhysical at, unsigned size, std::uint64_t expected, std::uint64_t desired) override {
    if (read_word(at, size) != expected) return false;
    std::memcpy(page(at) + at.value() % page_size, &desired, size);
    return true;
  }

 private:
  struct alignas(page_size) Page : std::array<std::byte, page_size> {};
  std::vector<Page> bytes_;
};

/// A guest that is one program in user mode, run by the engine, with 4-level paging.
class SmallMachine {
 public:
  explicit SmallMachine(std::uint64_t pages) : ram_{pages}, engine_{ram_, platform_, &code_} {}

  [[nodiscard]] exec::Engine& engine() { return engine_; }
  /// The beginning of a guest-physical page.
  [[nodiscard]] std::byte* page(std::uint64_t number) { return ram_.page(GuestPhysical{number * page_size}); }
  /// An entry of a paging structure, both in pages of their own.
  void link(std::uint64_t table, std::uint64_t entry, std::uint64_t to) {
    put_entry(table, entry, to * page_size | present_writable_user_accessed_dirty);
  }
  /// Goes on at `rip` with these paging structures; all registers have one value.
  void begin(std::uint64_t rip, std::uint64_t root, std::uint64_t value, std::uint64_t stack) {
    exec::CpuState state;
    state.mode = exec::CodeMode::bits64;
    state.gpr.fill(value);
    state.gpr[exec::rsp] = stack;
    state.rip = rip;
    state.rflags = 2;
    state.cpl = 3;
    state.paging = {.cr0 = x86::cr0::PG::mask | x86::cr0::WP::mask | x86::cr0::PE::mask,
                    .cr3 = root * page_size,
                    .cr4 = x86::cr4::PAE::mask | x86::cr4::OSFXSR::mask | x86::cr4::OSXSAVE::mask,
                    .efer = x86::efer::LME::mask | x86::efer::LMA::mask,
                    .physical_width = 40,
                    .alignment_check = false};
    platform_.state = {};
    platform_.state.xcr0 = 7;
    engine_.load(state);
  }
  /// So many instructions; false if not all of them retired.
  bool run(std::uint64_t instructions) {
    constexpr unsigned max_turns = 1'000'000;
    const std::uint64_t end = engine_.passed().instructions + instructions;
    for (unsigned turn = 0; turn < max_turns; ++turn) {
      const std::uint64_t left = end - engine_.passed().instructions;
      if (left == 0) return true;
      const exec::Stop stop = engine_.run(left);
      if (stop != exec::Stop::budget && stop != exec::Stop::again) return false;
    }
    return false;
  }

 private:
  static constexpr std::uint64_t present_writable_user_accessed_dirty = 0x67;
  void put_entry(std::uint64_t table, std::uint64_t entry, std::uint64_t word) {
    std::memcpy(page(table) + entry * sizeof word, &word, sizeof word);
  }
  class Vectors final : public exec::NoPlatform {
   public:
    exec::VectorState* vectors() override { return &state; }
    exec::VectorState state;
  };

  SmallRam ram_;
  Vectors platform_;
  vmm::MappedHostCode code_;
  exec::Engine engine_;
};

}  // namespace vpmu::silicon
