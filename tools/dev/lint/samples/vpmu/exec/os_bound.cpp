#include <sys/mman.h>
