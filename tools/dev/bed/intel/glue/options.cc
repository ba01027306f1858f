#include "options.hpp"

#include <cstdlib>

namespace bed {
namespace {

std::uint64_t number(const char* name, std::uint64_t otherwise, int base = 10) {
  const char* const value = std::getenv(name);
  return value != nullptr && *value != '\0' ? std::strtoull(value, nullptr, base) : otherwise;
}

Options from_environment() {
  Options o;
  if (const char* const model = std::getenv("BED_MODEL")) o.model = model;
  o.signature = static_cast<std::uint32_t>(number("BED_SIGNATURE", o.signature, 16));
  o.skid = static_cast<unsigned>(number("BED_SKID", o.skid));
  o.cycles = static_cast<unsigned>(number("BED_CYCLES", o.cycles));
  o.seed = number("BED_SEED", o.seed);
  o.warm = number("BED_WARM", 0) != 0;
  return o;
}

}  // namespace

const Options& options() {
  static const Options read = from_environment();
  return read;
}

}  // namespace bed
