#include "machine/machine.hpp"
