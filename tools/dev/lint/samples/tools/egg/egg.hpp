#pragma once
#include "hen/hen.hpp"
