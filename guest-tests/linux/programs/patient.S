# Long enough for its recording to be disturbed.
#include "counted_loop.inc"
        counted_program patient, 40000000
