#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "vpmu/event.hpp"
#include "vpmu/generation.hpp"

namespace vmm {

/// The vendor that defines a host's events.
enum class HostVendor : std::uint8_t { intel, amd, other };

/// A host CPU, as far as its events depend on it.
struct HostCpu {
  HostVendor vendor{HostVendor::other};
  std::optional<vpmu::Generation> generation;  ///< Of an Intel CPU that is one of the models: its events are all known.
};

/// The CPU that CPUID describes by leaf 0's vendor string and leaf 1's EAX.
HostCpu host_cpu(std::string_view vendor, std::uint32_t signature);
/// The CPU that this runs on.
HostCpu this_host_cpu();

/// An event in perf's terms: perf_event_attr's type and config.
struct HostEvent {
  std::uint32_t type{};
  std::uint64_t config{};
  friend bool operator==(const HostEvent&, const HostEvent&) = default;
};

/// An event of a guest's counter.
struct GuestEvent {
  vpmu::Counts counts{};
  vpmu::EventSpec spec{};
  bool fixed{};      ///< Of a fixed counter: `spec` has no code.
  bool per_cycle{};  ///< A form with CMASK or EDGE that is no number of events.
};

/// What a host can count for a guest's event.
struct EventTranslation {
  enum class Match : std::uint8_t {
    none,     ///< Nothing: `about` says why.
    nearest,  ///< Something that is not quite the same.
    same,
  };
  Match match{};
  HostEvent event{};
  vpmu::Frequency of_tsc{};  ///< Not 0: the guest's event counts a clock of that rate, the host's counts the TSC's.
  std::string_view about;    ///< The host's event by name, or the reason for none.
};

/// The host's event for one of a guest of `guest`. A host of the same generation counts by the guest's own code;
/// another Intel host by its model's event of the same meaning, or else the architectural one (SDM 3B table 18-1); an
/// AMD host by the nearest that AMD documents for all its CPUs of family 10H and later. Never fails.
EventTranslation translate(const HostCpu& host, const vpmu::GenerationDesc& guest, const GuestEvent& wanted);

}  // namespace vmm
