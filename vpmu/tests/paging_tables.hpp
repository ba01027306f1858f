#pragma once
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "table_memory.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/paging.hpp"

namespace vpmu::test {

/// Bits of control registers and entries as the tests spell them.
inline constexpr std::uint64_t PG = bit(31), WP = bit(16), PE = bit(0);
inline constexpr std::uint64_t PSE = bit(4), PAE = bit(5), LA57 = bit(12), SMEP = bit(20), SMAP = bit(21);
inline constexpr std::uint64_t LME = bit(8), LMA = bit(10), NXE = bit(11);
inline constexpr std::uint64_t P = bit(0), RW = bit(1), US = bit(2), A = bit(5), D = bit(6), PS = bit(7), XD = bit(63);

/// One level of a mode: which bits of the linear address select its entry.
struct TableLevel {
  unsigned shift{};
  unsigned index_bits{};
};

/// A paging mode with a linear address to walk in it.
struct TableShape {
  std::string name;
  PagingState state;
  unsigned entry_bytes{};
  std::vector<TableLevel> levels;  ///< From the root down.
  std::uint64_t linear{};
  bool root_has_attributes{true};
  bool has_execute_disable{true};
};

inline void PrintTo(const TableShape& shape, std::ostream* out) { *out << shape.name; }

inline TableShape legacy_shape() {
  return {.name = "Legacy32Bit",
          .state = {.cr0 = PG | WP | PE, .cr3 = 0x1000, .cr4 = 0},
          .entry_bytes = 4,
          .levels = {{22, 10}, {12, 10}},
          .linear = 0x8765'4321,
          .has_execute_disable = false};
}
inline TableShape legacy_pse_shape() {
  TableShape shape = legacy_shape();
  shape.name = "Legacy32BitWithPse";
  shape.state.cr4 = PSE;
  return shape;
}
inline TableShape pae_shape() {
  return {.name = "Pae",
          .state = {.cr0 = PG | WP | PE, .cr3 = 0x1000, .cr4 = PAE, .efer = NXE},
          .entry_bytes = 8,
          .levels = {{30, 2}, {21, 9}, {12, 9}},
          .linear = 0xc765'4321,
          .root_has_attributes = false};
}
inline TableShape four_level_shape() {
  return {.name = "FourLevel",
          .state = {.cr0 = PG | WP | PE, .cr3 = 0x1000, .cr4 = PAE, .efer = LME | LMA | NXE},
          .entry_bytes = 8,
          .levels = {{39, 9}, {30, 9}, {21, 9}, {12, 9}},
          .linear = 0xffff'8123'4567'8abc};
}
inline TableShape five_level_shape() {
  TableShape shape = four_level_shape();
  shape.name = "FiveLevel";
  shape.state.cr4 |= LA57;
  shape.levels.insert(shape.levels.begin(), {48, 9});
  shape.linear = 0xff12'8123'4567'8abc;
  return shape;
}
inline std::vector<TableShape> all_shapes() {
  return {legacy_shape(), legacy_pse_shape(), pae_shape(), four_level_shape(), five_level_shape()};
}

/// Page tables of one shape that map its linear address to `frame`; the table of level i lies at (i + 1) * 4 KiB.
class Tables {
 public:
  static constexpr std::uint64_t frame = 0x9000;

  explicit Tables(TableShape shape) : shape_{std::move(shape)} {
    const std::uint64_t attributes = RW | US;
    for (std::size_t i = 0; i < depth(); ++i) {
      const std::uint64_t next = i == last() ? frame : table(i + 1);
      set(i, next | P | (i == 0 && !shape_.root_has_attributes ? 0 : attributes));
    }
  }

  [[nodiscard]] std::size_t depth() const { return shape_.levels.size(); }
  [[nodiscard]] std::size_t last() const { return depth() - 1; }
  /// The first level whose entries carry R/W, U/S and A.
  [[nodiscard]] std::size_t first_with_attributes() const { return shape_.root_has_attributes ? 0 : 1; }
  [[nodiscard]] static std::uint64_t table(std::size_t level) { return (level + 1) * page_size; }
  [[nodiscard]] std::uint64_t entry_at(std::size_t level) const {
    const auto& l = shape_.levels[level];
    return table(level) + ((shape_.linear >> l.shift) & low_bits(l.index_bits)) * shape_.entry_bytes;
  }
  [[nodiscard]] std::uint64_t get(std::size_t level) const { return memory.peek(entry_at(level), shape_.entry_bytes); }
  void set(std::size_t level, std::uint64_t word) { memory.poke(entry_at(level), word, shape_.entry_bytes); }
  void add(std::size_t level, std::uint64_t bits) { set(level, get(level) | bits); }
  void remove(std::size_t level, std::uint64_t bits) { set(level, get(level) & ~bits); }

  [[nodiscard]] const TableShape& shape() const { return shape_; }
  [[nodiscard]] PagingState& state() { return shape_.state; }

  Walk walk(PagingAccess access = PagingAccess::read, PagingPrivilege privilege = PagingPrivilege::supervisor,
            AccessedDirty accessed_dirty = AccessedDirty::leave) {
    return translate(shape_.state, memory, GuestLinear{shape_.linear}, access, privilege, accessed_dirty);
  }
  /// The error code of a walk that page-faults at the linear address; all ones when it does anything else.
  std::uint32_t error_code(PagingAccess access = PagingAccess::read,
                           PagingPrivilege privilege = PagingPrivilege::supervisor) {
    const Walk result = walk(access, privilege);
    const auto* fault = std::get_if<PageFault>(&result);
    return fault != nullptr && fault->address.value() == shape_.linear ? fault->error_code : ~0U;
  }
  /// Whether the walk finds the byte in `frame`.
  bool reaches_frame(PagingAccess access = PagingAccess::read,
                     PagingPrivilege privilege = PagingPrivilege::supervisor) {
    return walk(access, privilege) == Walk{Mapped{GuestPhysical{frame | (shape_.linear & 0xfff)}, page_size}};
  }

  TableMemory memory{8 * page_size};

 private:
  TableShape shape_;
};

}  // namespace vpmu::test
