#include "block_guest.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "small_machine.hpp"
#include "timing/core_timer.hpp"
#include "uarch/processor_model.hpp"

namespace vpmu::silicon {
namespace {

constexpr std::uint64_t max_copies = 112, max_warm_up = 100;
constexpr std::uint64_t fill = 0x12345600;   // of registers and memory
constexpr std::uint64_t stack = 0x12345A00;  // RSP is apart from what the others point to
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

}  // namespace

class BlockGuest::Machine {
 public:
  Machine() {
    for (std::uint64_t level = 0; level < 3; ++level) {
      link_all(data_tables + level, level == 0 ? data_page : data_tables + level - 1);
      link_all(code_tables + level, code_tables + level - 1);
    }
    for (std::uint64_t entry = 0; entry < 512; ++entry)
      machine_.link(code_tables, entry, entry < code_pages ? first_code_page + entry : data_page);
    link_all(root, data_tables + 2);
    machine_.link(root, code_root_entry, code_tables + 2);
  }

  std::optional<BlockTime> run(std::span<const std::byte> block, const timing::Microarchitecture& on,
                               const uarch::Profile& profile) {
    const auto instructions = timing::timed_block(block, on);
    if (!instructions || block.empty() || block.size() > max_code / 2) return std::nullopt;
    uarch::ProcessorModel model{profile};
    timing::CoreTimer timer{on};
    model.keep_time(timer);
    machine_.engine().observe(&model);
    std::optional<BlockTime> time;
    const std::uint64_t copies = copies_of(block.size()), before = std::min(copies, max_warm_up);
    std::uint64_t warm{};
    const auto run = [&](std::uint64_t more) { return machine_.run(more * instructions->size()); };
    const auto cycles = [&] { return model.cycles(machine_.engine().observed()); };
    // The first time all lines of code and data, and their pages, come into the caches.
    if (begin(block, copies + before) && run(copies + before) && begin(block, copies + before) && run(before)) {
      warm = cycles();
      if (run(copies))
        time = {.cycles = static_cast<double>(cycles() - warm) / static_cast<double>(copies),
                .all_have_rows = std::ranges::all_of(*instructions, &timing::TimedInstruction::has_row)};
    }
    machine_.engine().observe(nullptr);
    return time;
  }

 private:
  void link_all(std::uint64_t table, std::uint64_t to) {
    for (std::uint64_t entry = 0; entry < 512; ++entry) machine_.link(table, entry, to);
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
    std::byte* const code = machine_.page(first_code_page);
    for (std::size_t at = 0; at < sweep_bytes; at += no_operation.size())
      std::ranges::copy(no_operation, code + max_code + at);
    for (std::uint64_t copy = 0; copy < copies; ++copy) std::ranges::copy(block, code + copy * block.size());
    machine_.begin(code_at + max_code, root, fill, stack);
    if (!machine_.run(sweep_bytes / no_operation.size())) return false;
    for (std::size_t at = 0; at < page_size; at += sizeof fill)
      std::memcpy(machine_.page(data_page) + at, &fill, sizeof fill);
    machine_.begin(code_at, root, fill, stack);
    return true;
  }

  SmallMachine machine_{pages};
};

BlockGuest::BlockGuest() : machine_{std::make_unique<Machine>()} {}
BlockGuest::~BlockGuest() = default;

std::optional<BlockTime> BlockGuest::run(std::span<const std::byte> block, const timing::Microarchitecture& on,
                                         const uarch::Profile& profile) {
  return machine_->run(block, on, profile);
}

}  // namespace vpmu::silicon
