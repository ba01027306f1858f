#pragma once
#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include "files/whole_file.hpp"
#include "kvm/fd.hpp"
#include "support/result.hpp"

namespace vmm::tool {

/// Guests that have booted, saved as snapshots in the user's cache directory: a later run goes on from there. A file's
/// name says all that its content depends on, so a file that is there is right, or damaged, which its checksums show.
/// Several processes may use the directory at once: a file appears whole, and one that is removed stays readable to
/// whoever has opened it.
class GuestCache {
 public:
  struct Entry {
    std::string name;
    std::uint64_t bytes{};
    std::time_t used{};  ///< When it was last written or found.
  };

  /// $XDG_CACHE_HOME/vpmu/guests, or ~/.cache/vpmu/guests, which is made if it is missing. Fails with kind host if
  /// there can be none, or if somebody else could write there.
  static Result<GuestCache> open();

  /// A file to read; none if there is none, or if somebody else has put it there. Counts as a use.
  [[nodiscard]] std::optional<Fd> find(const std::string& name) const;
  /// The file, to be written and finished; see WholeFile. First removes those that were not used for longest, until
  /// max_bytes() are left.
  [[nodiscard]] Result<WholeFile> add(const std::string& name) const;
  /// Fails with kind host if it stays there.
  Result<void> remove(const std::string& name) const;
  /// All, the one that was used last first.
  [[nodiscard]] std::vector<Entry> list() const;
  [[nodiscard]] const std::string& path() const { return path_; }
  /// How much it may hold: $VPMU_GUEST_CACHE_SIZE, a number and K, M or G, or 4G. One more guest may be added to that.
  [[nodiscard]] std::uint64_t max_bytes() const { return max_bytes_; }

 private:
  GuestCache(std::string path, Fd directory, std::uint64_t max_bytes)
      : path_{std::move(path)}, directory_{std::move(directory)}, max_bytes_{max_bytes} {}
  void shrink() const;

  std::string path_;
  Fd directory_;
  std::uint64_t max_bytes_;
};

}  // namespace vmm::tool
