#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "exec/host/host_assembler.hpp"
#include "exec/host/host_form.hpp"
#include "exec/state/platform.hpp"
#include "exec/state/vector_state.hpp"

namespace vpmu::exec {

/// One instruction of the guest that runs on the host's CPU, between loads and stores of the guest's registers.
struct HostRoutine {
  /// Runs it with the memory operand at `memory`; `gprs` by number. `flags` are RFLAGS before it; gives those after it,
  /// when it writes them.
  using Entry = std::uint64_t (*)(VectorState* vectors, std::byte* memory, std::uint64_t* gprs, std::uint64_t flags);
  Entry entry{};
  HostForm form;
};

/// The routines of one vCPU, each made once.
class HostRoutines {
 public:
  /// `code` may be null: then there are no routines. `guest` tells which features the guest has; null: all. Both must
  /// outlive this.
  explicit HostRoutines(HostCode* code, Platform* guest = nullptr) : code_{code}, guest_{guest} {}
  [[nodiscard]] bool guest_has(CpuFeature feature) const { return guest_ == nullptr || guest_->has(feature); }
  /// Null: no routine for this CPU or the guest's, or no room. Valid until clear().
  const HostRoutine* find(const HostForm& form);
  /// A routine found no room. Where there is something to forget, clear() makes some.
  [[nodiscard]] bool lacked_room() const { return lacked_room_; }
  [[nodiscard]] bool is_empty() const { return routines_.empty(); }
  void clear();

 private:
  HostCode* code_;
  Platform* guest_;
  std::unordered_map<std::string, std::unique_ptr<HostRoutine>> routines_;  ///< By their machine code.
  HostAssembler assembler_;
  bool lacked_room_{};
};

}  // namespace vpmu::exec
