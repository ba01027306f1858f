#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "sources/source.hpp"
#include "vcpu/guest_view.hpp"

namespace vmm {

/// What a program asks of whoever counts it, by a client request of Valgrind's: instructions that do nothing elsewhere.
/// They are ROL RDI by 3, 13, 61 and 51, and XCHG RBX, RBX; RAX has the address of six words: the request, and its
/// arguments. Valgrind manual, chapter 3.1, "The Client Request mechanism"; Callgrind's are in chapter 6.5.
struct ClientRequest {
  enum class Kind {
    start_instrumentation,
    stop_instrumentation,
    toggle_collect,
    zero_stats,
    dump_stats,
    begin_region,  ///< Ours: vpmu_regions.h.
    end_region,
  };
  Kind kind{};
  std::string label;  ///< Of dump_stats and begin_region; at most max_label bytes, may be empty. A text
                      ///< that the program has not touched yet cannot be read: then its address.

  static constexpr std::size_t max_label = 127;
};

/// The request that a program has ended with this instruction; empty: it is none, or one that has no meaning here.
/// Called before the program goes on. Memory that cannot be read is no request.
std::optional<ClientRequest> read_client_request(const RbxExchange& exchange, GuestView& view);

}  // namespace vmm
