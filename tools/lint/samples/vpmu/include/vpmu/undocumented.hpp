#pragma once

int undocumented();
