#pragma once
#include <compare>

namespace vpmu {

/// An integer that does not mix with other integers: `Strong<struct Tag, T>` makes one type per meaning.
/// Construction and reading are explicit; comparison works; arithmetic is added per type where it makes sense.
/// Costs nothing at run time. Never fails.
template <class Tag, class T>
class Strong {
 public:
  /// The plain integer's type.
  using value_type = T;
  constexpr Strong() = default;
  /// From the plain integer.
  constexpr explicit Strong(T value) : value_{value} {}
  /// The plain integer.
  [[nodiscard]] constexpr T value() const { return value_; }
  friend constexpr auto operator<=>(const Strong&, const Strong&) = default;

 private:
  T value_{};
};

}  // namespace vpmu
