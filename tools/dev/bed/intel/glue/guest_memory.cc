#include "guest_memory.hpp"

#include <algorithm>

#include "bochs.h"
#include "cpu/cpu.h"
#include "memory/memory-bochs.h"

namespace bed {
namespace {

constexpr std::uint64_t page_bytes = 4096;

/// Calls f(physical address, bytes, bytes before them) for each page.
template <class F>
vpmu::AccessResult for_each_page(std::uint64_t linear, std::uint64_t bytes, F&& f) {
  for (std::uint64_t done = 0; done < bytes;) {
    const std::uint64_t at = linear + done;
    const std::uint64_t here = std::min(bytes - done, page_bytes - at % page_bytes);
    bx_phy_address physical = 0;
    if (!BX_CPU(0)->dbg_xlate_linear2phy(at, &physical)) return vpmu::AccessFault{.address = vpmu::GuestLinear{at}};
    if (!f(physical, here, done)) return vpmu::AccessFault{.address = vpmu::GuestLinear{at}, .not_memory = true};
    done += here;
  }
  return {};
}

}  // namespace

vpmu::AccessResult read_guest(std::uint64_t linear, std::span<std::byte> out) {
  return for_each_page(linear, out.size(), [&](bx_phy_address at, std::uint64_t bytes, std::uint64_t before) {
    auto* const to = reinterpret_cast<Bit8u*>(out.data() + before);
    return BX_MEM(0)->dbg_fetch_mem(BX_CPU(0), at, static_cast<unsigned>(bytes), to);
  });
}

vpmu::AccessResult write_guest(std::uint64_t linear, std::span<const std::byte> in) {
  return for_each_page(linear, in.size(), [&](bx_phy_address at, std::uint64_t bytes, std::uint64_t before) {
    // writePhysicalPage() only reads the data, but takes a pointer to non-const.
    BX_MEM(0)->writePhysicalPage(BX_CPU(0), at, static_cast<unsigned>(bytes),
                                 const_cast<std::byte*>(in.data() + before));
    return true;
  });
}

vpmu::AccessResult probe_guest(std::uint64_t linear, std::uint64_t bytes) {
  return for_each_page(linear, bytes, [](auto...) { return true; });
}

}  // namespace bed
