#pragma once
#include "vpmu/x86.hpp"

namespace vmm {
namespace x86 = vpmu::x86;
}
