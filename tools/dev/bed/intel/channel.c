// L1's side of the bed's channels (glue/channel.h). Static, below 4 GiB.
//
//   channel write N                  standard input goes to channel N, to its end
//   channel job N                    copies one job from channel N to standard output: a line with its length, then it
//   channel mount N PATH DIRECTORY   mounts PATH of the 9P server at channel N on DIRECTORY; stays, to serve it
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/io.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include "glue/channel.h"

static struct bed_channel_request request;
static unsigned char buffer[bed_channel_most];

static void die(const char* what) {
  fprintf(stderr, "channel: %s: %s\n", what, strerror(errno));
  exit(1);
}

// The other side uses physical addresses of this buffer: each page must be present, and ours alone.
static void hold_memory(void) {
  if (mlockall(MCL_CURRENT) != 0) die("mlockall");
}

// Returns how many bytes were written or read; ends the program on failure.
static uint32_t ask(enum bed_channel_what what, uint32_t channel, void* data, uint32_t bytes) {
  request = (struct bed_channel_request){
      .what = what, .channel = channel, .buffer = (uintptr_t)data, .bytes = bytes, .done = -ENXIO};
  __asm__ volatile("outl %0, %w1" ::"a"((uint32_t)(uintptr_t)&request), "d"(bed_channel_port) : "memory");
  if (request.done >= 0) return (uint32_t)request.done;
  errno = -request.done;
  die(what == bed_channel_write ? "write" : "read");
  return 0;
}

static void put(int file, const unsigned char* data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = write(file, data + done, bytes - done);
    if (n < 0) die("write");
    done += (size_t)n;
  }
}

static void pass_on(uint32_t channel) {
  ssize_t n;
  while ((n = read(0, buffer, sizeof buffer)) > 0) ask(bed_channel_write, channel, buffer, (uint32_t)n);
  if (n < 0) die("read");
}

static void take_job(uint32_t channel) {
  char line[16] = {0};
  for (size_t n = 0; n == 0 || line[n - 1] != '\n'; ++n)
    if (n == sizeof line - 1 || ask(bed_channel_read, channel, line + n, 1) == 0) exit(1);
  for (unsigned long left = strtoul(line, 0, 10); left > 0;) {
    const uint32_t n = ask(bed_channel_read, channel, buffer, left < sizeof buffer ? (uint32_t)left : sizeof buffer);
    if (n == 0) exit(1);
    put(1, buffer, n);
    left -= n;
  }
}

// Reads one whole 9P message from the kernel. Each begins with its length, 4 bytes.
static uint32_t take_message(int file) {
  size_t done = 0, length = 4;
  while (done < length) {
    const ssize_t n = read(file, buffer + done, length - done);
    if (n <= 0) return 0;
    done += (size_t)n;
    uint32_t told;
    memcpy(&told, buffer, sizeof told);
    if (done == 4) length = told;
    if (length < 4 || length > sizeof buffer) return 0;
  }
  return (uint32_t)length;
}

static void serve(uint32_t channel, int file) {
  uint32_t length;
  while ((length = take_message(file)) != 0) {
    ask(bed_channel_write, channel, buffer, length);
    uint32_t done = ask(bed_channel_read, channel, buffer, sizeof buffer);
    for (;;) {
      uint32_t told = 4;
      if (done >= 4) memcpy(&told, buffer, sizeof told);
      if (done >= told) break;
      const uint32_t n = ask(bed_channel_read, channel, buffer + done, sizeof buffer - done);
      if (n == 0) exit(1);
      done += n;
    }
    put(file, buffer, done);
  }
}

static void mount_files(uint32_t channel, const char* path, const char* directory) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) die("socketpair");
  const pid_t server = fork();
  if (server < 0) die("fork");
  if (server == 0) {
    hold_memory();
    close(ends[1]);
    setsid();
    serve(channel, ends[0]);
    _exit(0);
  }
  close(ends[0]);
  char options[512];
  snprintf(options, sizeof options,
           "trans=fd,rfdno=%d,wfdno=%d,version=9p2000.L,msize=524288,cache=loose,access=any,uname=root,aname=%s",
           ends[1], ends[1], path);
  if (mount("bed", directory, "9p", 0, options) != 0) die(directory);
}

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const uint32_t channel = (uint32_t)strtoul(argv[2], 0, 10);
  if (ioperm(bed_channel_port, 4, 1) != 0) die("ioperm");
  hold_memory();
  if (strcmp(argv[1], "write") == 0)
    pass_on(channel);
  else if (strcmp(argv[1], "job") == 0)
    take_job(channel);
  else if (strcmp(argv[1], "mount") == 0 && argc == 5)
    mount_files(channel, argv[3], argv[4]);
  else
    return 2;
  return 0;
}
