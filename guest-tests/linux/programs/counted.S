# For exact counts.
#include "counted_loop.inc"
        counted_program counted, 100000
