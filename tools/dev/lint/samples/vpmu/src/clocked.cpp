#include <chrono>

// SDM page 18-38 is no reference, and rule Z99 is none of ours.
bool is_skylake(Generation g) { return g == Generation::skylake; }
