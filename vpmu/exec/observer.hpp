#pragma once
#include <cstdint>

#include "vpmu/retirement.hpp"

namespace vpmu::exec {

/// A line of code that instructions are fetched from.
struct SeenCode {
  std::uint64_t linear{};
  std::uint64_t physical{};
  std::uint64_t page_bytes{};  ///< Of the page that it is in.
};

/// An access to data that lies in one page. What crosses pages is two of these.
struct SeenAccess {
  std::uint64_t linear{};
  std::uint64_t physical{};
  std::uint64_t page_bytes{};
  std::uint16_t bytes{};
  bool store{};
  bool second_half{};  ///< Goes on with the one before, in the next page.
};

/// A branch that retired.
struct SeenBranch {
  std::uint64_t at{};
  std::uint64_t behind{};  ///< The instruction behind it.
  std::uint64_t to{};
  BranchKind kind{};
  bool taken{};
};

/// Sees what instructions do to memory, in the order of the program. Nothing is seen twice and nothing that did not happen, except that
/// code of a block may be fetched whose last instructions then fault.
class Observer {
 public:
  virtual ~Observer() = default;
  /// The block that begins lies in this line, and it is another than the last one.
  virtual void fetched(const SeenCode& code) = 0;
  /// The instruction that is going to retire made an access; `now` instructions have retired before it, since Engine::observe().
  virtual void accessed(const SeenAccess& access, std::uint64_t now) = 0;
  /// It has retired; it loads, stores, or both by what it is, even where it made no access. Not told for other instructions.
  virtual void retired(bool load, bool store) = 0;
  virtual void branched(const SeenBranch& branch) = 0;
  /// The engine gave the instruction up after some elements of a string: what was told of it is done, and it does not retire here.
  virtual void abandoned() = 0;
  /// Control registers changed: translations are gone.
  virtual void flushed() = 0;
};

}  // namespace vpmu::exec
