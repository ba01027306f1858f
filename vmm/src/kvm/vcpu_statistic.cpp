#include "kvm/vcpu_statistic.hpp"

#include <linux/kvm.h>
#include <unistd.h>

#include <utility>
#include <vector>

namespace vmm {
namespace {

bool read_at(const Fd& file, void* out, std::size_t size, off_t at) {
  return ::pread(file.get(), out, size, at) == static_cast<ssize_t>(size);
}

// Documentation/virt/kvm/api.rst, KVM_GET_STATS_FD. A descriptor is followed by its name, padded to name_size.
off_t find(const Fd& file, std::string_view wanted) {
  kvm_stats_header header{};
  if (!file.valid() || !read_at(file, &header, sizeof header, 0)) return 0;
  constexpr std::uint32_t max_descriptors = 4096, max_name_length = 256;
  if (header.num_desc > max_descriptors || header.name_size > max_name_length) return 0;
  std::vector<char> name(header.name_size + 1);
  off_t at = header.desc_offset;
  for (std::uint32_t n = 0; n < header.num_desc;
       ++n, at += static_cast<off_t>(sizeof(kvm_stats_desc) + header.name_size)) {
    kvm_stats_desc descriptor{};
    if (!read_at(file, &descriptor, sizeof descriptor, at)) return 0;
    if (!read_at(file, name.data(), header.name_size, at + static_cast<off_t>(sizeof descriptor))) return 0;
    if (wanted == name.data()) return static_cast<off_t>(header.data_offset) + descriptor.offset;
  }
  return 0;
}

}  // namespace

VcpuStatistic::VcpuStatistic(Fd statistics, std::string_view name)
    : statistics_{std::move(statistics)}, at_{find(statistics_, name)} {}

std::optional<std::uint64_t> VcpuStatistic::read() const {
  std::uint64_t value = 0;
  if (at_ == 0 || !read_at(statistics_, &value, sizeof value, at_)) return std::nullopt;
  return value;
}

}  // namespace vmm
