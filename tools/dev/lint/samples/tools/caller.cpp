#include "virt/libvirt_calls.hpp"
