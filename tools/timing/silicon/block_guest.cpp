#include "block_guest.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "exec/engine.hpp"
#include "exec/state/vector_state.hpp"
#include "memory/host_code.hpp"
#include "timing/pipeline.hpp"
#include "vpmu/observer.hpp"
#include "vpmu/x86.hpp"

namespace vpmu::silicon {
namespace {

// Copies. Those that are measured begin equally often at each place of 16 bytes.
constexpr unsigned warm_up = 100, measured = 112;
constexpr std::uint64_t fill = 0x12345600;   // of registers and memory
constexpr std::uint64_t stack = 0x12345A00;  // RSP is apart from what the others point to
constexpr std::size_t code_alignment = 16;   // blocks differ by where they begin in so many bytes
constexpr std::uint64_t max_instructions = 1'000'000;

// Guest-physical pages.
constexpr std::uint64_t data_page = 0, data_tables = 1, code_tables = 4, root = 7, first_code_page = 8, code_pages = 64;
constexpr std::uint64_t pages = first_code_page + code_pages;
// The code's part of the address space has a root entry to itself.
constexpr std::uint64_t code_root_entry = 64, code_at = code_root_entry << 39;

/// RAM from guest-physical address 0 on.
class SmallRam final : public exec::Ram {
 public:
  SmallRam() : bytes_(pages + 1, Page{}) {}

  std::byte* page(GuestPhysical at) override {
    return at.value() / page_size < pages ? bytes_[at.value() / page_size].data() : nullptr;
  }
  void will_write(GuestPhysical) override {}
  std::optional<std::uint64_t> read_word(GuestPhysical at, unsigned size) override {
    if (at.value() / page_size >= pages) return std::nullopt;
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

class Vectors final : public exec::NoPlatform {
 public:
  exec::VectorState* vectors() override { return &state; }
  exec::VectorState state;
};

/// Keeps accesses as a TimedBlock has them: of each instruction as many loads, and then stores, as it is timed with.
class Accesses final : public Observer {
 public:
  void fetched(const SeenCode&) override {}
  void accessed(const SeenAccess& access, std::uint64_t) override {
    (access.store ? stores_ : loads_).push_back({.physical = access.physical, .bytes = access.bytes});
  }
  void retired(bool, bool) override {}
  void branched(const SeenBranch&) override {}
  void abandoned() override {}
  void flushed_line(const SeenFlush&) override {}
  void flushed() override {}

  void clear() { all_.clear(); }
  /// The instruction has retired.
  void end(const timing::TimedInstruction& instruction) {
    take(loads_, instruction.loads);
    take(stores_, instruction.stores);
  }
  [[nodiscard]] std::span<const timing::TimedAccess> all() const { return all_; }

 private:
  /// An access that was not made is one of somewhere else.
  void take(std::vector<timing::TimedAccess>& from, std::size_t count) {
    from.resize(count, {.physical = pages * page_size, .bytes = 1});
    all_.insert(all_.end(), from.begin(), from.end());
    from.clear();
  }

  std::vector<timing::TimedAccess> loads_, stores_, all_;
};

}  // namespace

class BlockGuest::Machine {
 public:
  Machine() : engine_{ram_, platform_, &code_} {
    for (std::uint64_t level = 0; level < 3; ++level) {
      link_all(data_tables + level, level == 0 ? data_page : data_tables + level - 1);
      link_all(code_tables + level, code_tables + level - 1);
    }
    for (std::uint64_t entry = 0; entry < 512; ++entry)
      link(code_tables, entry, entry < code_pages ? first_code_page + entry : data_page);
    link_all(root, data_tables + 2);
    link(root, code_root_entry, code_tables + 2);
    engine_.observe(&accesses_);
  }

  std::optional<BlockTime> run(std::span<const std::byte> block, const timing::Microarchitecture& on) {
    const auto instructions = timing::timed_block(block, on);
    if (!instructions || block.empty() || block.size() * (warm_up + measured) > code_pages * page_size)
      return std::nullopt;
    begin(block);
    timing::Pipeline pipeline{on};
    std::array<std::vector<timing::TimedBlockPtr>, code_alignment> made;
    timing::Time warm{};
    for (unsigned copy = 0; copy < warm_up + measured; ++copy) {
      if (copy == warm_up) warm = pipeline.now();
      const std::uint64_t rip = code_at + copy * block.size();
      auto& parts = made.at(rip % code_alignment);
      if (parts.empty()) parts = timing::make_blocks(*instructions, rip, on);
      std::size_t next = 0;
      for (const timing::TimedBlockPtr& part : parts) {
        accesses_.clear();
        for (unsigned i = 0; i < part->instructions; ++i)
          if (!step((*instructions)[next++])) return std::nullopt;
        pipeline.retire(*part, accesses_.all());
      }
    }
    return BlockTime{.cycles = static_cast<double>(pipeline.now() - warm) / timing::cycle / measured,
                     .all_have_rows = std::ranges::all_of(*instructions, &timing::TimedInstruction::has_row)};
  }

 private:
  void link(std::uint64_t table, std::uint64_t entry, std::uint64_t to) {
    constexpr std::uint64_t present_writable_user_accessed_dirty = 0x67;
    const std::uint64_t word = to * page_size | present_writable_user_accessed_dirty;
    std::memcpy(ram_.page(GuestPhysical{table * page_size}) + entry * sizeof word, &word, sizeof word);
  }
  void link_all(std::uint64_t table, std::uint64_t to) {
    for (std::uint64_t entry = 0; entry < 512; ++entry) link(table, entry, to);
  }

  void begin(std::span<const std::byte> block) {
    for (std::size_t at = 0; at < page_size; at += sizeof fill)
      std::memcpy(ram_.page(GuestPhysical{data_page}) + at, &fill, sizeof fill);
    std::byte* const code = ram_.page(GuestPhysical{first_code_page * page_size});
    for (unsigned copy = 0; copy < warm_up + measured; ++copy)
      std::memcpy(code + copy * block.size(), block.data(), block.size());
    exec::CpuState state;
    state.mode = exec::CodeMode::bits64;
    state.gpr.fill(fill);
    state.gpr[exec::rsp] = stack;
    state.rip = code_at;
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

  /// One instruction; false if it did not retire.
  bool step(const timing::TimedInstruction& instruction) {
    const std::uint64_t before = engine_.passed().instructions;
    for (std::uint64_t part = 0; part < max_instructions; ++part) {
      const exec::Stop stop = engine_.run(1);
      if (engine_.passed().instructions != before) {
        accesses_.end(instruction);
        return true;
      }
      if (stop != exec::Stop::budget && stop != exec::Stop::again) return false;
    }
    return false;
  }

  SmallRam ram_;
  Vectors platform_;
  vmm::MappedHostCode code_;
  exec::Engine engine_;
  Accesses accesses_;
};

BlockGuest::BlockGuest() : machine_{std::make_unique<Machine>()} {}
BlockGuest::~BlockGuest() = default;

std::optional<BlockTime> BlockGuest::run(std::span<const std::byte> block, const timing::Microarchitecture& on) {
  return machine_->run(block, on);
}

}  // namespace vpmu::silicon
