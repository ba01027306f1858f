#include "attach/msr_lists.hpp"

#include <algorithm>
#include <cerrno>
#include <vector>

namespace vmm {
namespace {

/// More than KVM has.
constexpr std::uint32_t max_listed = 4096;

std::vector<std::uint64_t> room_for(std::span<const kvm_msr_entry> entries) {
  constexpr std::size_t words = sizeof(kvm_msr_entry) / sizeof(std::uint64_t);
  static_assert(sizeof(kvm_msrs) == sizeof(std::uint64_t));
  std::vector<std::uint64_t> room(1 + entries.size() * words);
  auto& list = *reinterpret_cast<kvm_msrs*>(room.data());
  list.nmsrs = static_cast<std::uint32_t>(entries.size());
  std::ranges::copy(entries, list.entries);
  return room;
}

int ask_for(std::span<kvm_msr_entry> entries, const MsrOwners& owners) {
  std::vector<std::uint64_t> room = room_for(entries);
  auto& list = *reinterpret_cast<kvm_msrs*>(room.data());
  const int answer = owners.ask_kvm(list);
  if (answer > 0) std::copy_n(list.entries, answer, entries.begin());
  return answer;
}

}  // namespace

MsrListCopy::MsrListCopy(const kvm_msrs& list) : room_{room_for({list.entries, list.nmsrs})} {}

int serve_msrs(kvm_msrs& list, const MsrOwners& owners) {
  if (!is_served(list)) {
    errno = E2BIG;
    return -1;
  }
  const std::span entries{list.entries, list.nmsrs};
  for (std::size_t i = 0; i < entries.size();) {
    if (owners.is_ours(entries[i].index)) {
      if (!owners.serve(entries[i])) return static_cast<int>(i);
      ++i;
      continue;
    }
    const auto end = std::find_if(entries.begin() + static_cast<std::ptrdiff_t>(i), entries.end(),
                                  [&](const auto& e) { return owners.is_ours(e.index); });
    const auto count = static_cast<std::size_t>(end - entries.begin()) - i;
    const int answer = ask_for(entries.subspan(i, count), owners);
    if (answer < 0) return answer;
    i += static_cast<std::size_t>(answer);
    if (static_cast<std::size_t>(answer) < count) return static_cast<int>(i);
  }
  return static_cast<int>(list.nmsrs);
}

int list_msrs(kvm_msr_list& list, std::span<const std::uint32_t> ours,
              const std::function<int(kvm_msr_list& list)>& ask_kvm) {
  std::vector<std::uint32_t> room(1 + max_listed);
  static_assert(sizeof(kvm_msr_list) == sizeof(std::uint32_t));
  auto& kvms = *reinterpret_cast<kvm_msr_list*>(room.data());
  kvms.nmsrs = max_listed;
  if (const int answer = ask_kvm(kvms); answer != 0) return answer;
  std::vector<std::uint32_t> all(kvms.indices, kvms.indices + kvms.nmsrs);
  std::ranges::copy_if(ours, std::back_inserter(all),
                       [known = std::span{kvms.indices, kvms.nmsrs}](std::uint32_t index) {
                         return std::ranges::find(known, index) == known.end();
                       });
  const std::uint32_t places = list.nmsrs;
  list.nmsrs = static_cast<std::uint32_t>(all.size());
  if (places < list.nmsrs) {
    errno = E2BIG;
    return -1;
  }
  std::ranges::copy(all, list.indices);
  return 0;
}

}  // namespace vmm
