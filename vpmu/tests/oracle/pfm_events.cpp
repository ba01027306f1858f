#include "pfm_events.hpp"

#include <perfmon/pfmlib.h>

#include <array>
#include <cstdlib>
#include <string_view>

namespace vpmu::oracle {
namespace {

/// The index of the PMU's first event, or -1.
int first_event(std::string_view pmu) {
  for (int i = 0; i < PFM_PMU_MAX; ++i) {
    pfm_pmu_info_t info{};
    info.size = sizeof info;
    if (pfm_get_pmu_info(static_cast<pfm_pmu_t>(i), &info) == PFM_SUCCESS && pmu == info.name) return info.first_event;
  }
  return -1;
}

/// PERFEVTSEL of an event string, or 0.
std::uint64_t encode(const std::string& event) {
  std::array<std::uint64_t, 8> codes{};
  pfm_pmu_encode_arg_t arg{};
  arg.size = sizeof arg;
  arg.codes = codes.data();
  arg.count = static_cast<int>(codes.size());
  return pfm_get_os_event_encoding(event.c_str(), PFM_PLM0 | PFM_PLM3, PFM_OS_NONE, &arg) == PFM_SUCCESS ? codes[0] : 0;
}

PfmEvent describe(const std::string& pmu, const std::string& name, bool precise) {
  const std::uint64_t select = encode(pmu + "::" + name);
  return {name, static_cast<std::uint8_t>(select), static_cast<std::uint8_t>(select >> 8), precise};
}

void append_event(std::vector<PfmEvent>& list, const std::string& pmu, int index) {
  pfm_event_info_t event{};
  event.size = sizeof event;
  if (pfm_get_event_info(index, PFM_OS_NONE, &event) != PFM_SUCCESS) return;
  bool has_umasks = false;
  for (int a = 0; a < event.nattrs; ++a) {
    pfm_event_attr_info_t attr{};
    attr.size = sizeof attr;
    if (pfm_get_event_attr_info(index, a, PFM_OS_NONE, &attr) != PFM_SUCCESS || attr.type != PFM_ATTR_UMASK) continue;
    has_umasks = true;
    list.push_back(describe(pmu, std::string{event.name} + ":" + attr.name, attr.is_precise != 0));
  }
  if (!has_umasks) list.push_back(describe(pmu, event.name, event.is_precise != 0));
}

}  // namespace

std::vector<PfmEvent> pfm_events(const char* pmu) {
  // Other CPUs' events are listed and encoded only with this; libpfm4 reads it when it starts.
  setenv("LIBPFM_ENCODE_INACTIVE", "1", 1);
  std::vector<PfmEvent> list;
  if (pfm_initialize() != PFM_SUCCESS) return list;
  for (int index = first_event(pmu); index != -1; index = pfm_get_event_next(index)) append_event(list, pmu, index);
  return list;
}

}  // namespace vpmu::oracle
