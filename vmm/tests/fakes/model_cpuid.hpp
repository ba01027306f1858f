#pragma once
#include <string_view>

#include "model/guest_cpuid.hpp"
#include "model/model.hpp"
#include "processor/guest_features.hpp"
#include "soft/soft_backend.hpp"

namespace vmm::test {

/// CPUID of a vCPU without KVM on this host. The model must exist.
inline CpuidTable cpuid_of(std::string_view model) {
  return guest_cpuid({.model = *find_machine_model(model),
                      .supported = supported_features(),
                      .tsc_deadline = true,
                      .tsc_hz = SoftBackend::default_tsc_khz * 1000,
                      .cpus = 1,
                      .bare_metal = false,
                      .threads_per_core = 2},
                     0);
}

}  // namespace vmm::test
