#include "kvm/vm.hpp"
