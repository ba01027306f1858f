"""The programs of bench-programs: what each is given, and the image of a guest that runs them."""

import dataclasses
import os
import pathlib
import random
import shutil
import subprocess
import tempfile

from paths import ROOT

ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/nonexistent", "LC_ALL": "C", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0",
               "GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_DATE": "2024-01-01T00:00:00Z", "GIT_COMMITTER_DATE": "2024-01-01T00:00:00Z"}
BASE = ROOT / "build/linux/initramfs.img"
PYTHON = "/usr/bin/python3"


@dataclasses.dataclass(frozen=True)
class Program:
    """`words` run in an empty directory; {work} is where the material is."""

    words: str
    starts_others: bool = False
    needs: tuple = ()  # programs beside the first word
    trees: tuple = ()  # directories

    def command(self, work):
        return ["sh", f"{work}/{self.words}"] if self.starts_others else self.words.format(work=work).split()

    def missing(self):
        return [file for file in self.files() if not os.path.exists(file)]

    def files(self):
        return [*(() if self.starts_others else self.words.split()[:1]), *self.needs]


def cc1():
    return subprocess.run(["gcc", "-print-prog-name=cc1"], capture_output=True, text=True, check=True).stdout.strip()


def standard_library():
    return subprocess.run([PYTHON, "-c", "import os; print(os.path.dirname(os.__file__))"], capture_output=True, text=True, check=True).stdout.strip()


def git_core():
    return subprocess.run(["git", "--exec-path"], capture_output=True, text=True, check=True).stdout.strip()


ALL = {
    "cc1": Program(f"{cc1()} -quiet -fpreprocessed -O2 -o /dev/stdout {{work}}/some.c"),
    "compileall": Program(f"{PYTHON} {{work}}/compile.py {{work}}/modules", trees=(standard_library(),)),
    "python": Program(f"{PYTHON} {{work}}/loop.py", trees=(standard_library(),)),
    "perl": Program("/usr/bin/perl {work}/words.pl {work}/text"),
    "sqlite": Program("/usr/bin/sqlite3 -init {work}/script.sql :memory: .quit"),
    "xz": Program("/usr/bin/xz -6 -T1 -c {work}/text"),
    "sort": Program("/usr/bin/sort -k2 {work}/text {work}/text {work}/text {work}/text"),
    "git": Program("git.sh", starts_others=True, needs=("/usr/bin/git", f"{git_core()}/git", "/bin/sh", "/bin/cp")),
    "bash": Program("configure.sh", starts_others=True, needs=("/bin/bash", "/bin/sh", "/bin/sed", "/bin/grep", "/usr/bin/expr", "/bin/cat", "/bin/rm", "/bin/mkdir", "/usr/bin/seq")),
    "redis": Program("redis.sh", starts_others=True, needs=("/usr/bin/redis-server", "/usr/bin/redis-cli", "/usr/bin/redis-benchmark", "/bin/sh", "/bin/sleep")),
}

LOOP = """
def sieve(n):
    is_prime = [True] * n
    for i in range(2, int(n ** 0.5) + 1):
        if is_prime[i]:
            for j in range(i * i, n, i):
                is_prime[j] = False
    return sum(is_prime) - 2

class Tree:
    def __init__(self, depth):
        self.left, self.right = (Tree(depth - 1), Tree(depth - 1)) if depth else (None, None)
    def count(self):
        return 1 + (self.left.count() + self.right.count() if self.left else 0)

words = {}
for i in range(150000):
    words[str(i * i % 997)] = words.get(str(i * i % 997), 0) + 1
print(sieve(400000), Tree(14).count(), sorted(words.items(), key=lambda item: (-item[1], item[0]))[:5])
"""
COMPILE = """
import marshal, pathlib, sys
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.py")):
    print(path.name, len(marshal.dumps(compile(path.read_text(), path.name, "exec"))))
"""
PERL = r"""
my (%seen, %after, $last);
while (<>) { for my $word (split /\W+/) { next unless length $word; $seen{lc $word}++; $after{$last}{$word}++ if defined $last; $last = $word; s/(\w)(\w*)/$2$1/g if /aba/; } }
printf "%s %d %d\n", $_, $seen{$_}, scalar keys %{$after{$_}} for (sort { $seen{$b} <=> $seen{$a} || $a cmp $b } keys %seen)[0 .. 50];
"""
GIT = """set -e
here=${0%/*}
git init -q -b main tree
cd tree
git config user.name bench
git config gc.auto 0
git config user.email bench@example.org
cp -r "$here/modules" .
git add .
git commit -q -m first
for n in 1 2 3; do
  cp "$here/text" "modules/text$n"
  git add .
  git commit -q -m "number $n"
done
git log --stat --format=%s
git diff --stat HEAD~3
"""
CONFIGURE = r"""set -e
exec bash -c '
for n in $(seq 1 30); do
  name=$(expr "$n" \* 7)
  echo "#define HAVE_$name 1" >>conf.h
  if grep -q "HAVE_$name " conf.h; then answer=yes; else answer=no; fi
  line=$(sed -n "s/^#define \(HAVE_$name\) .*/\1/p" conf.h)
  case $line in HAVE_*) result=$result,$answer ;; esac
  (cat conf.h | sed -e "s/define/undef/" >conf.$n) 2>/dev/null
  mkdir -p dir.$n && rm -r dir.$n
done
echo "$result"
cat conf.30'
"""
REDIS = """set -e
redis-server --port 16379 --save '' >log &
until redis-cli -p 16379 ping >answer 2>&1; do sleep 0.1; done
redis-benchmark -p 16379 -c 10 -n 1000 -q -t set,get,incr,lpush,lrange_100 >log.benchmark
redis-cli -p 16379 get counter:__rand_int__
redis-cli -p 16379 llen mylist
redis-cli -p 16379 shutdown nosave
wait
"""
INIT = """#!/bin/busybox sh
export {environment}
/bin/busybox mkdir -p /proc /sys /dev /tmp
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
/bin/busybox mount -t devtmpfs devtmpfs /dev
/bin/busybox ln -s /proc/self/fd /dev/fd
/bin/busybox ln -s /proc/self/fd/1 /dev/stdout
/bin/busybox ip link set lo up
count=
if /bin/busybox grep -q bench.count /proc/cmdline; then count="perf stat -o /dev/null -e instructions --"; fi
while read -r name command; do
  /bin/busybox mkdir -p "/tmp/$name"
  cd "/tmp/$name"
  echo "bench: begin $name"
  status=0
  $count $command >/tmp/out 2>/tmp/err </dev/null || status=$?
  set -- $(/bin/busybox md5sum /tmp/out)
  /bin/busybox head -c 300 /tmp/err
  echo "bench: end $name $status $1"
done </bench/list
/bin/busybox poweroff -f
"""


def some_c(random_):
    """A file that gives a compiler some work."""
    lines = ["struct item { long key; int kind; unsigned char bytes[24]; struct item *next; double weight; };", "extern long find(struct item *, long);"]
    for n in range(12):
        a, b, c = (random_.randrange(3, 99) for _ in range(3))
        lines.append(f"long f{n}(struct item *list, const int *table, int count, double scale) {{\n  long sum = {a};\n  for (int i = 0; i < count; ++i) {{\n"
                     f"    switch (table[i] % {b % 7 + 5}) {{")
        for case in range(5):
            lines.append(f"    case {case}: sum += table[i] * {random_.randrange(2, 50)} + (sum >> {case + 1}); break;")
        lines.append(f"    default: sum ^= find(list, i + {c});\n    }}\n  }}\n  for (struct item *at = list; at; at = at->next) {{\n"
                     f"    if (at->kind == {a} && at->weight > scale) at->weight = at->weight * scale + {b};\n    else at->bytes[at->key & 15] += (unsigned char)(sum / {c});\n"
                     f"    for (int j = 0; j < 24; ++j) sum += at->bytes[j] << (j & {b % 7});\n  }}\n  return sum{f' + f{n - 1}(list, table, count / 2, scale + 1)' if n else ''};\n}}")
    return "\n".join(lines) + "\n"


def text(random_):
    words = ["".join(random_.choice("abcdefghilmnoprstu") for _ in range(random_.randrange(2, 9))) for _ in range(3000)]
    return "".join(" ".join(random_.choice(words) for _ in range(random_.randrange(3, 14))) + "\n" for _ in range(9000))


def script(random_):
    lines = ["create table t(a integer primary key, b integer, c text);", "create index by_b on t(b);", "begin;"]
    lines += [f"insert into t(b, c) values ({random_.randrange(1000)}, 'row {random_.randrange(10**6)}');" for _ in range(15000)]
    lines += ["commit;", "select count(*), sum(b), max(c) from t;", "select b, count(*) from t group by b order by 2 desc, 1 limit 20;",
              "select t.a, u.a from t join t u on u.b = t.b + 1 where t.a < 200 order by t.a, u.a limit 300;", "update t set c = c || '!' where b % 7 = 3;",
              "delete from t where b between 100 and 300;", "select sum(length(c)) from t where c like '%9%!';"]
    return "\n".join(lines) + "\n"


def write_work(work):
    """What the programs are given: the same each time, but for Python's own modules."""
    random_ = random.Random(44)
    work.mkdir()
    work.chmod(0o755)
    for name, content in (("some.c", some_c(random_)), ("text", text(random_)), ("script.sql", script(random_)), ("loop.py", LOOP), ("compile.py", COMPILE), ("words.pl", PERL), ("git.sh", GIT),
                          ("configure.sh", CONFIGURE), ("redis.sh", REDIS)):
        (work / name).write_text(content, encoding="ascii")
    (work / "modules").mkdir()
    for name in ("argparse", "ast", "calendar", "configparser", "csv", "dataclasses", "datetime", "decimal", "difflib", "doctest", "inspect", "optparse", "pickle", "random", "tarfile", "typing"):
        shutil.copy(f"{standard_library()}/{name}.py", work / "modules")


def libraries(program):
    ended = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)  # a static one has none
    return [word for word in ended.stdout.split() if word.startswith("/")]


def put(root, path):
    """A file of this machine at the same place in the image."""
    place = root / path.lstrip("/")
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)


def write_image(image, work, names):
    """The image of guest-tests, with these programs in it and another init."""
    if not BASE.exists():
        subprocess.run([ROOT / "guest-tests/linux/build-initramfs", BASE.parent], check=True)
    with tempfile.TemporaryDirectory() as place:
        root = pathlib.Path(place)
        for name in names:
            for file in ALL[name].files():
                for path in (file, *libraries(file)):
                    put(root, path)
            for tree in ALL[name].trees:
                shutil.copytree(tree, root / tree.lstrip("/"), ignore=shutil.ignore_patterns("test", "idlelib", "config-*", "ensurepip", "lib2to3"), dirs_exist_ok=True)
                for extension in (root / tree.lstrip("/")).glob("lib-dynload/*.so"):
                    for path in libraries(extension):
                        put(root, path)
        shutil.copytree(work, root / "bench")
        (root / "bench/list").write_text("".join(f"{name} {' '.join(ALL[name].command('/bench'))}\n" for name in names), encoding="ascii")
        init = root / "init"
        init.write_text(INIT.format(environment=" ".join(f"{name}={value}" for name, value in ENVIRONMENT.items())), encoding="ascii")
        init.chmod(0o755)
        listed = subprocess.run(["find", "."], cwd=root, capture_output=True, check=True).stdout
        packed = subprocess.run(["busybox", "cpio", "-o", "-H", "newc", "-R", "0:0"], cwd=root, input=listed, capture_output=True, check=True).stdout
    image.write_bytes(BASE.read_bytes() + packed)
