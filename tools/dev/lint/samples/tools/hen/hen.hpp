#pragma once
#include "egg/egg.hpp"
