#include "chain_guest.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "timing/core_timer.hpp"
#include "uarch/processor_model.hpp"

namespace vpmu::silicon {
namespace {

// Guest-physical pages: paging structures, the code, and then the data.
constexpr std::uint64_t root = 0, upper = 1, directory = 2, code_tables = 3, code_page = 6, tables = 7;
constexpr std::uint64_t entries_of_table = 512, data_pages = ChainGuest::max_bytes / page_size;
constexpr std::uint64_t data_page = tables + data_pages / entries_of_table;
constexpr std::uint64_t data_root_entry = 1, code_root_entry = 2;
constexpr std::uint64_t data_at = data_root_entry << 39, code_at = code_root_entry << 39;

/// mov (%rax), %rax
constexpr std::array load{std::byte{0x48}, std::byte{0x8B}, std::byte{0x00}};
/// jmp, back over all that is before it.
constexpr std::byte jump{0xE9};
constexpr std::uint64_t loads_of_round = 256;

std::vector<std::uint32_t> order_of(ChainOrder order, std::uint64_t count, std::uint64_t stride) {
  std::vector<std::uint32_t> places(count);
  std::iota(places.begin(), places.end(), 0U);
  std::mt19937_64 random{count * stride};
  switch (order) {
    case ChainOrder::linear_forward: break;
    case ChainOrder::linear_backward: std::ranges::reverse(places); break;
    case ChainOrder::random_full: std::ranges::shuffle(places, random); break;
    case ChainOrder::page_random: {
      const std::uint64_t of_window = std::max<std::uint64_t>(ChainGuest::window / stride, 1);
      for (std::uint64_t at = 0; at < count; at += of_window)
        std::ranges::shuffle(std::span{places}.subspan(at, std::min(of_window, count - at)), random);
      break;
    }
  }
  return places;
}

}  // namespace

std::optional<ChainOrder> chain_order(std::string_view name) {
  using enum ChainOrder;
  constexpr std::array<std::pair<std::string_view, ChainOrder>, 4> all{{{"linear_forward", linear_forward},
                                                                        {"linear_backward", linear_backward},
                                                                        {"page_random", page_random},
                                                                        {"random_full", random_full}}};
  for (const auto& [known, order] : all)
    if (known == name) return order;
  return std::nullopt;
}

ChainGuest::ChainGuest() : machine_{data_page + data_pages} {
  machine_.link(root, data_root_entry, upper);
  machine_.link(upper, 0, directory);
  for (std::uint64_t page = 0; page < data_pages; ++page) {
    const std::uint64_t table = page / entries_of_table, entry = page % entries_of_table;
    if (entry == 0) machine_.link(directory, table, tables + table);
    machine_.link(tables + table, entry, data_page + page);
  }
  machine_.link(root, code_root_entry, code_tables);
  for (std::uint64_t level = 0; level < 3; ++level)
    machine_.link(code_tables + level, 0, level == 2 ? code_page : code_tables + level + 1);
  std::byte* at = machine_.page(code_page);
  for (std::uint64_t n = 0; n < loads_of_round; ++n) at = std::ranges::copy(load, at).out;
  *at++ = jump;
  const auto back = -static_cast<std::int32_t>(loads_of_round * load.size() + 1 + sizeof(std::int32_t));
  std::memcpy(at, &back, sizeof back);
}

std::optional<double> ChainGuest::run(ChainOrder order, std::uint64_t bytes, std::uint64_t stride,
                                      const timing::Microarchitecture& on, const uarch::Profile& profile) {
  if (stride < sizeof(std::uint64_t) || bytes > max_bytes || bytes / stride < 2) return std::nullopt;
  const std::vector<std::uint32_t> places = order_of(order, bytes / stride, stride);
  const auto address = [&](std::uint64_t n) { return data_at + places[n % places.size()] * stride; };
  for (std::uint64_t n = 0; n < places.size(); ++n) {
    const std::uint64_t next = address(n + 1), offset = places[n] * stride;
    std::memcpy(machine_.page(data_page + offset / page_size) + offset % page_size, &next, sizeof next);
  }
  uarch::ProcessorModel model{profile};
  timing::CoreTimer timer{on};
  model.keep_time(timer);
  exec::Engine& engine = machine_.engine();
  engine.observe(&model);
  machine_.begin(code_at, root, address(0), data_at);
  // With the jumps, at least one round through all of the memory before and one that is measured.
  const std::uint64_t rounds = std::max<std::uint64_t>(places.size(), 8 * loads_of_round) / loads_of_round + 1;
  const std::uint64_t instructions = rounds * (loads_of_round + 1);
  std::optional<double> cycles;
  if (machine_.run(instructions)) {
    const std::uint64_t before = model.cycles(engine.observed());
    if (machine_.run(instructions))
      cycles =
          static_cast<double>(model.cycles(engine.observed()) - before) / static_cast<double>(rounds * loads_of_round);
  }
  engine.observe(nullptr);
  return cycles;
}

}  // namespace vpmu::silicon
