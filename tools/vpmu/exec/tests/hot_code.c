// Programs whose hot instruction lies in two pages. "fork": a child, which has nothing mapped yet, runs it. "unmap":
// its second page is dropped and read in again.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

// 64 KiB: Linux maps as much at once around a fault.
__asm__(
    ".text\n .balign 65536\n .fill 65534, 1, 0x90\n .globl add_one\n"
    "add_one: lea 1(%rdi), %rax\n ret\n .balign 65536\n .fill 4096, 1, 0x90\n");
long add_one(long);

enum { hot = 2000, few = 10, rounds = 5, page = 4096 };

static long repeat(long (*function)(long), long x, int times) {
  while (times-- != 0) x = function(x);
  return x;
}

static int with_a_child(void) {
  const long x = repeat(add_one, 0, hot);
  const pid_t child = fork();
  if (child == 0) {
    printf("child %ld\n", repeat(add_one, x, few));
    return 0;
  }
  int status = -1;
  if (waitpid(child, &status, 0) != child || status != 0) return 1;
  printf("parent %ld\n", repeat(add_one, x, few));
  return 0;
}

static int without_its_page(void) {
  unsigned char code[2 * page];
  memset(code, 0x90, sizeof code);
  memcpy(code + page - 2, (unsigned char[]){0x48, 0x8D, 0x47, 0x01, 0xC3}, 5);  // lea 1(%rdi), %rax; ret
  char name[] = "/tmp/codeXXXXXX";
  const int file = mkstemp(name);
  if (file < 0 || write(file, code, sizeof code) != (ssize_t)sizeof code) return 1;
  unsigned char* const at = mmap(NULL, sizeof code, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
  unlink(name);
  if (at == MAP_FAILED) return 1;
  long (*function)(long) = (long (*)(long))(at + page - 2);
  long x = repeat(function, 0, hot);
  for (int n = 0; n < rounds; ++n) {
    if (madvise(at + page, page, MADV_DONTNEED) != 0) return 1;
    x = repeat(function, x, few);
  }
  printf("unmapped %ld\n", x);
  return 0;
}

int main(int argc, char** argv) {
  return argc > 1 && strcmp(argv[1], "fork") == 0 ? with_a_child() : without_its_page();
}
