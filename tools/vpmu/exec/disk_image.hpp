#pragma once
#include <string>

#include "support/result.hpp"
#include "virtio/back_ends.hpp"

namespace vmm::tool {

/// A disk's image, as the command line names it.
struct DiskImage {
  std::string path;
  virtio::DiskFormat format{};
  virtio::Access access{virtio::Access::read_write};
  unsigned partition{};  ///< The partition to use; 0: none is named.
  bool operator==(const DiskImage&) const = default;
};

/// Reads IMAGE[,ro][,format=raw|qcow2][,partition=N]; what else has commas is part of the name. Without a format an
/// image is qcow2 where its name ends in .qcow2, and else raw: what is in it does not decide, since a guest that writes
/// to a raw image may make it look like any other, one that names files of the host's. An image that looks like qcow2
/// and is not called so is refused until the format is given. Fails with kind usage.
Result<DiskImage> read_disk_image(const std::string& text);

}  // namespace vmm::tool
