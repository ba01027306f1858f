#pragma once
#include <cstring>

#include "exec/memory/access.hpp"

namespace vpmu::exec {

/// A T of the guest's memory that a LOCK instruction changes: in place and atomically. A misaligned one is changed in a
/// copy, which finish() stores; only while no other vCPU runs.
template <class T>
struct Exchanged {
  T* at{};                  ///< Null: the instruction must stop here (Core::stop), nothing has changed.
  std::uint64_t copy_of{};  ///< Not 0: it is a copy, in Core::operand.
};

template <class T>
[[gnu::noinline]] Exchanged<T> copy_to_exchange(Core* c, std::uint64_t at) {
  c->stop = Stop::unsupported;
  if (!c->platform->runs_alone()) return {};
  T value{};
  if (!can_store<T>(c, at) || !load(c, at, value)) return {};
  std::memcpy(c->operand.data(), &value, sizeof value);
  return {.at = reinterpret_cast<T*>(c->operand.data()), .copy_of = at};
}

template <class T>
VPMU_PART_OF_OP Exchanged<T> find_to_exchange(Core* c, std::uint64_t at) {
  if (at % sizeof(T) != 0) [[unlikely]]
    return copy_to_exchange<T>(c, at);
  return {.at = reinterpret_cast<T*>(find_to_change<T>(c, at))};
}

/// False: the instruction must stop here, as with `at` null, and leave registers as they were.
template <class T>
[[nodiscard]] VPMU_PART_OF_OP bool finish(Core* c, const Exchanged<T>& e) {
  return e.copy_of == 0 || store(c, e.copy_of, *e.at);
}

}  // namespace vpmu::exec
