#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "support/result.hpp"

namespace vmm::tool {

/// Where the kernel of a guest may be.
struct KernelPlaces {
  std::string given;    ///< By --kernel; empty: looked for.
  std::string running;  ///< This host's own.
  std::string fetched;  ///< The one that tools/dev/bed/fetch guest has put into its cache.
};

/// Where the program at this path looks for what tools/dev/bed/fetch has fetched: in the cache of the tree in whose
/// directory build it was built, else in /var/cache/vpmu.
std::filesystem::path fetched_files(const std::filesystem::path& program);

/// Where a file that tools/dev/bed/fetch has fetched is: in the directory that VPMU_CACHE names, else in
/// fetched_files() of this program.
std::string fetched_file(std::string_view path);

/// The places on this host.
KernelPlaces kernel_places(const std::string& given);

/// The first of these that can be read. Fails with kind usage, and names each place and what to do.
Result<std::string> find_kernel(const KernelPlaces& places);

/// The version in a bzImage, as `uname -r` prints it: the name of its directory of modules. Fails with kind usage if
/// the file has none.
Result<std::string> kernel_version(std::span<const std::byte> file);

/// A kernel's file.
struct KernelFile {
  std::string version;       ///< kernel_version().
  std::uint64_t checksum{};  ///< Checksum of all of it.
};

/// Reads it once, and keeps nothing of it. Fails with kind usage.
Result<KernelFile> look_at_kernel(const std::string& path);

}  // namespace vmm::tool
