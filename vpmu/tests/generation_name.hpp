#pragma once
#include <gtest/gtest.h>

#include <string>

#include "vpmu/generation.hpp"

namespace vpmu::test {

/// The generation's name without hyphens, which GoogleTest does not allow in names of tests.
inline std::string generation_name(const testing::TestParamInfo<const GenerationDesc*>& info) {
  std::string name{info.param->name};
  std::erase(name, '-');
  return name;
}

}  // namespace vpmu::test
