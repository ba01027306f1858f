#include "timing/microarchitecture.hpp"

namespace vpmu::timing {
namespace {

/// The ports of these numbers.
constexpr std::uint8_t ports(std::initializer_list<int> numbers) {
  std::uint8_t mask{};
  for (const int number : numbers) mask = static_cast<std::uint8_t>(mask | 1U << number);
  return mask;
}

constexpr std::array<std::uint8_t, max_port_sets> nehalem_port_sets{
    ports({0}),    ports({1}),    ports({5}),       ports({4}), ports({0, 1}),
    ports({0, 5}), ports({1, 5}), ports({0, 1, 5}), ports({2}), ports({3})};

constexpr std::array<std::uint8_t, max_port_sets> six_port_sets{ports({0}),    ports({1}),       ports({5}),
                                                                ports({4}),    ports({0, 1}),    ports({0, 5}),
                                                                ports({1, 5}), ports({0, 1, 5}), ports({2, 3})};

constexpr std::array<std::uint8_t, max_port_sets> eight_port_sets{
    ports({0}),       ports({1}),       ports({5}),       ports({6}),          ports({4}),    ports({0, 1}),
    ports({0, 5}),    ports({0, 6}),    ports({1, 5}),    ports({1, 6}),       ports({5, 6}), ports({0, 1, 5}),
    ports({0, 1, 6}), ports({0, 5, 6}), ports({1, 5, 6}), ports({0, 1, 5, 6}), ports({2, 3}), ports({2, 3, 7})};

constexpr Microarchitecture make_haswell() {
  return {.rows = RowSet::haswell,
          .is_compared = true,
          .reorder_buffer = 192,
          .scheduler = 60,
          .load_buffer = 72,
          .store_buffer = 42,
          .locked = 19,
          .load_ports = ports({2, 3}),
          .store_address_ports = ports({2, 3, 7}),
          .indexed_store_address_ports = ports({2, 3}),
          .store_data_ports = ports({4}),
          .alu_ports = ports({0, 1, 5, 6}),
          .fused_branch_ports = ports({0, 6}),
          .slow_lea_ports = ports({1}),
          .eliminates_moves = true,
          .bit_counts_wait = true,
          .port_sets = eight_port_sets};
}

constexpr Microarchitecture make_ivy_bridge() {
  Microarchitecture m = make_haswell();
  m.rows = RowSet::ivy_bridge;
  m.reorder_buffer = 168;
  m.scheduler = 54;
  m.load_buffer = 64;
  m.store_buffer = 36;
  m.locked = 22;
  m.store_address_ports = m.indexed_store_address_ports = ports({2, 3});
  m.alu_ports = ports({0, 1, 5});
  m.fused_branch_ports = ports({5});
  m.unlaminates_all_indexed = true;
  m.port_sets = six_port_sets;
  return m;
}

constexpr Microarchitecture make_sandy_bridge() {
  Microarchitecture m = make_ivy_bridge();
  m.rows = RowSet::sandy_bridge;
  m.is_compared = false;
  m.eliminates_moves = false;
  m.locked = 23;
  return m;
}

/// Westmere's, too. Decoders have all of its code: it has no micro-op cache, and loops that the loop buffer would hold
/// are decoded anew each time. A misprediction costs 17 cycles and more (A. Fog). What is not said here is Sandy
/// Bridge's, vector loads and atomic accesses among it.
constexpr Microarchitecture make_nehalem() {
  Microarchitecture m = make_sandy_bridge();
  m.rows = RowSet::nehalem;
  m.reorder_buffer = 128;
  m.scheduler = 36;
  m.load_buffer = 48;
  m.store_buffer = 32;
  m.refill = 17;
  m.decoder_refill = 0;
  m.load_latency = 4;
  m.load_ports = ports({2});
  m.store_address_ports = m.indexed_store_address_ports = ports({3});
  m.slow_lea_ports = 0;
  m.fuses_compares_only = true;
  m.renames_idioms = false;
  m.unlaminates_all_indexed = false;
  m.port_sets = nehalem_port_sets;
  return m;
}

constexpr Microarchitecture make_broadwell() {
  Microarchitecture m = make_haswell();
  m.rows = RowSet::broadwell;
  m.page_walkers = 2;
  m.is_compared = false;
  return m;
}

constexpr Microarchitecture make_skylake() {
  Microarchitecture m = make_haswell();
  m.rows = RowSet::skylake;
  m.page_walkers = 2;
  m.reorder_buffer = 224;
  m.scheduler = 97;
  m.store_buffer = 56;
  m.refill = 16;
  m.cache_width = 6;
  m.cache_to_microcode = 2;
  m.store_forwarding = 4;
  m.vector_store_forwarding = 5;
  m.locked = 18;
  m.fuses_on_last_decoder = true;
  m.bit_counts_wait = false;
  return m;
}

constexpr Microarchitecture make_skylake_sp() {
  Microarchitecture m = make_skylake();
  m.rows = RowSet::skylake_sp;
  return m;
}

}  // namespace

constinit const Microarchitecture nehalem = make_nehalem(), sandy_bridge = make_sandy_bridge(),
                                  ivy_bridge = make_ivy_bridge(), haswell = make_haswell(),
                                  broadwell = make_broadwell(), skylake = make_skylake(),
                                  skylake_sp = make_skylake_sp();

}  // namespace vpmu::timing
