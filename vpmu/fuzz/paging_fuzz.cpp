#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <span>

#include "vpmu/paging.hpp"

// Random bytes as registers and physical memory: the walk ends, reads at most the promised number of entries, asks only
// for aligned words, and never accepts an answer that contradicts itself.

namespace {

using namespace vpmu;

/// The head of the input; the rest is RAM from address 0.
struct Registers {
  std::uint64_t cr0, cr3, cr4, efer, at;
  std::uint8_t physical_width, flags;
};
constexpr std::size_t registers_bytes = 5 * 8 + 2;

Registers registers_from(const std::uint8_t* data) {
  Registers r{};
  std::memcpy(&r.cr0, data, 8);
  std::memcpy(&r.cr3, data + 8, 8);
  std::memcpy(&r.cr4, data + 16, 8);
  std::memcpy(&r.efer, data + 24, 8);
  std::memcpy(&r.at, data + 32, 8);
  r.physical_width = data[40];
  r.flags = data[41];
  return r;
}

void require(bool holds) {
  if (!holds) std::abort();
}

/// Input bytes as RAM, repeated every 16 KiB up to 1 MiB so that random frame numbers often find some. A write changes
/// the input bytes; other CPUs are played by letting every `hostility`-th exchange fail.
class InputMemory final : public PhysicalWords {
 public:
  InputMemory(std::span<const std::uint8_t> input, unsigned hostility) : hostility_{hostility} {
    std::memcpy(bytes_.data(), input.data(), std::min(input.size(), bytes_.size()));
  }
  std::optional<std::uint64_t> read_word(GuestPhysical at, unsigned bytes) override {
    ++reads;
    check(at, bytes);
    if (at.value() >= 1 << 20) return std::nullopt;
    std::uint64_t word = 0;
    std::memcpy(&word, &bytes_.at(at.value() % bytes_.size()), bytes);
    return word;
  }
  bool exchange_word(GuestPhysical at, unsigned bytes, std::uint64_t expected, std::uint64_t desired) override {
    ++exchanges;
    check(at, bytes);
    std::uint64_t word = 0;
    std::memcpy(&word, &bytes_.at(at.value() % bytes_.size()), bytes);
    if (hostility_ != 0 && exchanges % hostility_ == 0) bytes_.at(at.value() % bytes_.size()) ^= 0x21;
    if (word != expected) return false;
    require((expected & ~desired) == 0 && ((expected ^ desired) & ~std::uint64_t{0x60}) == 0);
    std::memcpy(&bytes_.at(at.value() % bytes_.size()), &desired, bytes);
    return true;
  }
  unsigned reads{};
  unsigned exchanges{};

 private:
  static void check(GuestPhysical at, unsigned bytes) {
    require(bytes == 4 || bytes == 8);
    require(at.value() % bytes == 0 && at.value() < std::uint64_t{1} << 52);
  }
  std::array<std::uint8_t, 16384> bytes_{};
  unsigned hostility_;
};

std::uint64_t pages_mapped = 0;

}  // namespace

extern "C" std::uint64_t fuzz_work() { return pages_mapped; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < registers_bytes) return 0;
  const Registers r = registers_from(data);
  InputMemory memory{{data + registers_bytes, size - registers_bytes}, (r.flags >> 5) & 7U};
  const PagingState state{.cr0 = r.cr0,
                          .cr3 = r.cr3,
                          .cr4 = r.cr4,
                          .efer = r.efer,
                          .physical_width = r.physical_width,
                          .alignment_check = (r.flags & 1) != 0,
                          .gigabyte_pages = (r.flags & 2) != 0};
  const auto access = static_cast<PagingAccess>((r.flags >> 2U) % 3U);
  const auto privilege = (r.flags & 16U) != 0 ? PagingPrivilege::user : PagingPrivilege::supervisor;

  const Walk looked = translate(state, memory, GuestLinear{r.at}, access, privilege, AccessedDirty::leave);
  require(memory.reads <= 5 && memory.exchanges == 0);
  require(!std::holds_alternative<Contended>(looked));
  if (const auto* mapped = std::get_if<Mapped>(&looked)) {
    ++pages_mapped;
    require(mapped->address.value() < std::uint64_t{1} << 52);
    require(((mapped->address.value() ^ r.at) & (page_size - 1)) == 0);
  }
  (void)translate(state, memory, GuestLinear{r.at}, access, privilege, AccessedDirty::set);
  require(memory.reads <= 5 + 16 * (5 + 5 * 16) && memory.exchanges <= 16 * 5 * 16);
  return 0;
}
