#include "block_guest.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "exec/engine.hpp"
#include "exec/state/vector_state.hpp"
#include "memory/host_code.hpp"
#include "timing/core_timer.hpp"
#include "uarch/processor_model.hpp"
#include "vpmu/observer.hpp"
#include "vpmu/x86.hpp"

namespace vpmu::silicon {
namespace {

constexpr std::uint64_t max_copies = 112, max_warm_up = 100;
constexpr std::uint64_t fill = 0x12345600;   // of registers and memory
constexpr std::uint64_t stack = 0x12345A00;  // RSP is apart from what the others point to
constexpr unsigned max_turns = 1'000'000;
// BHive ran each copy once, so no copy is in the micro-op cache: the code behind them takes each place of it twice
// over.
constexpr std::size_t max_code = 12 << 10, sweep_bytes = 16 << 10;
constexpr std::array no_operation{std::byte{0x66}, std::byte{0x90}};

// Guest-physical pages.
constexpr std::uint64_t data_page = 0, data_tables = 1, code_tables = 4, root = 7, first_code_page = 8;
constexpr std::uint64_t code_pages = (max_code + sweep_bytes) / page_size + 1;
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
  }

  std::optional<BlockTime> run(std::span<const std::byte> block, const timing::Microarchitecture& on,
                               const uarch::Profile& profile) {
    const auto instructions = timing::timed_block(block, on);
    if (!instructions || block.empty() || block.size() > max_code / 2) return std::nullopt;
    uarch::ProcessorModel model{profile};
    timing::CoreTimer timer{on};
    model.keep_time(timer);
    engine_.observe(&model);
    std::optional<BlockTime> time;
    const std::uint64_t copies = copies_of(block.size()), before = std::min(copies, max_warm_up);
    std::uint64_t warm{};
    const auto run = [&](std::uint64_t more) { return run_on(more * instructions->size()); };
    const auto cycles = [&] { return model.cycles(engine_.observed()); };
    // The first time all lines of code and data, and their pages, come into the caches.
    if (begin(block, copies + before) && run(copies + before) && begin(block, copies + before) && run(before)) {
      warm = cycles();
      if (run(copies))
        time = {.cycles = static_cast<double>(cycles() - warm) / static_cast<double>(copies),
                .all_have_rows = std::ranges::all_of(*instructions, &timing::TimedInstruction::has_row)};
    }
    engine_.observe(nullptr);
    return time;
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

  /// So many, of up to max_code / 2 bytes each, that these and as many before them fit the L1I, with the code behind
  /// them. They begin equally often at each place of 16 bytes, if they are short enough.
  static std::uint64_t copies_of(std::uint64_t bytes) {
    constexpr std::uint64_t alignment = 16;
    const std::uint64_t fit = std::min(max_copies, max_code / 2 / bytes);
    return fit >= alignment ? fit / alignment * alignment : fit;
  }

  /// Has so many copies of the block ready to run, none of which is in the decoded micro-op cache. False: the engine
  /// does not run.
  bool begin(std::span<const std::byte> block, std::uint64_t copies) {
    std::byte* const code = ram_.page(GuestPhysical{first_code_page * page_size});
    for (std::size_t at = 0; at < sweep_bytes; at += no_operation.size())
      std::ranges::copy(no_operation, code + max_code + at);
    for (std::uint64_t copy = 0; copy < copies; ++copy) std::ranges::copy(block, code + copy * block.size());
    engine_.load(begin_at(code_at + max_code));
    if (!run_on(sweep_bytes / no_operation.size())) return false;
    for (std::size_t at = 0; at < page_size; at += sizeof fill)
      std::memcpy(ram_.page(GuestPhysical{data_page}) + at, &fill, sizeof fill);
    engine_.load(begin_at(code_at));
    return true;
  }

  exec::CpuState begin_at(std::uint64_t rip) {
    exec::CpuState state;
    state.mode = exec::CodeMode::bits64;
    state.gpr.fill(fill);
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
    return state;
  }

  /// So many instructions; false if not all of them retired.
  bool run_on(std::uint64_t instructions) {
    const std::uint64_t end = engine_.passed().instructions + instructions;
    for (unsigned turn = 0; turn < max_turns; ++turn) {
      const std::uint64_t left = end - engine_.passed().instructions;
      if (left == 0) return true;
      const exec::Stop stop = engine_.run(left);
      if (stop != exec::Stop::budget && stop != exec::Stop::again) return false;
    }
    return false;
  }

  SmallRam ram_;
  Vectors platform_;
  vmm::MappedHostCode code_;
  exec::Engine engine_;
};

BlockGuest::BlockGuest() : machine_{std::make_unique<Machine>()} {}
BlockGuest::~BlockGuest() = default;

std::optional<BlockTime> BlockGuest::run(std::span<const std::byte> block, const timing::Microarchitecture& on,
                                         const uarch::Profile& profile) {
  return machine_->run(block, on, profile);
}

}  // namespace vpmu::silicon
