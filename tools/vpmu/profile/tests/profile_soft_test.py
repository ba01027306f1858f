"""vpmu profile, without KVM, and its page in a browser

Profiles and the pictures of their pages stay in build/logs/test/profile-soft.
"""

import collections
import html.parser
import json
import pathlib
import re
import shutil
import subprocess
import tempfile

import pytest

import fetched as files
from checks import contains, same
from paths import PROGRAM

PACKAGES = ("chromium", "redis-tools")
pytestmark = [pytest.mark.sample_tests(2), pytest.mark.seconds(60)]
HERE = pathlib.Path(__file__).resolve().parent
EVENTS = ("cycles", "loads", "mispredictions")
CYCLES, LOADS, LATENCY, MISPREDICTIONS = range(4)
# What the hot function is called: its name must become text, wherever it stands.
HOT = "</script><script>document.title='taken'</script><b>"
# Debian's package of its tools has the server too, under another name, and starts no service.
REDIS = "ln -s /usr/bin/redis-check-rdb /tmp/redis-server; /tmp/redis-server --port 6399 --save '' --appendonly no --daemonize no >/dev/null & " \
        "sleep 0.3; " \
        "redis-benchmark -p 6399 -t set,get -n {requests} -c {clients} -q >&2; redis-cli -p 6399 shutdown nosave; wait"


def within(seen, least, most, what):
    assert least <= seen <= most, f"{what}: {seen} is not from {least} to {most}"


class Report:
    """What a report.html has in its data."""

    def __init__(self, directory):
        self.page = (directory / "report.html").read_text()
        self.data = json.loads(re.search(r'id="profile-data">(.*?)</script>', self.page, re.DOTALL).group(1))
        self.names = [name for name, _ in self.data["names"]]

    def share(self, name, metric):
        """The function's own part of all."""
        own = sum(each["self"][metric] for each in self.data["functions"] if self.names[each["name"]] == name)
        return own / self.data["total"][metric]

    def levels(self, name):
        """How many of the function's load samples each level has."""
        for each in self.data["function_levels"]:
            if self.names[each["name"]] == name:
                return {level: count["samples"] for level, count in each["levels"].items()}
        return {}


# Samples enough of a program of some milliseconds, which a frequency does not give.
MANY = ("--period", "10007")


class Bench:
    """A directory with the program, and what has been made there once."""

    def __init__(self, accel, kernel, directory):
        self.accel, self.kernel, self.directory = accel, kernel, directory
        # With KVM the guest's clock goes on while the engine runs: in the bed there are some timer interrupts behind each sample, whose handlers
        # are counted until the next one.
        self.has_virtual_time = accel == "soft"
        source = self.directory / "profiled.o"
        subprocess.run(["gcc", "-O1", "-g", "-fno-omit-frame-pointer", "-c", HERE / "profiled.c", "-o", source], check=True)
        subprocess.run(["objcopy", "--redefine-sym", f"hot_work={HOT}", source], check=True)
        subprocess.run(["gcc", source, "-o", self.directory / "prog"], check=True)
        self.made = {}

    def profile(self, *options, name="profile", command=("./prog",)):
        always = ["--accel", self.accel, "--kernel", self.kernel]
        return subprocess.run(
            [PROGRAM, "profile", *always, "--output", name, *options, "--", *command],
            env=files.environment(),
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )

    def of(self, name, *options, command=("./prog",)):
        """The directory of a profile, made once."""
        if name not in self.made:
            done = self.profile(*options, name=name, command=command)
            same(done.returncode, 0, f"the exit code ({done.stderr:.500})")
            self.made[name] = done
        return self.directory / name


@pytest.fixture(scope="module")
def bench(request, fetched, kept):
    shutil.rmtree(kept)
    kept.mkdir()
    return Bench(request.config.option.accel, fetched, kept)


def test_sampling_takes_little(bench):
    """At the defaults: two percent of the cycles at most, by the report's head and by what the VMM counts of the same command without perf."""
    command = ("sh", "-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done")
    report = Report(bench.of("little", command=command))
    samples, total = report.data["events"][CYCLES]["samples"], report.data["total"][CYCLES]
    if samples < 100:
        raise AssertionError(f"{samples} samples, too few to tell")
    within(float(report.data["run"]["sampling"].split(" %")[0]), 0, 2, "percent of the cycles, by the report")
    same(report.data["run"]["lost"], 0, "lost samples")
    if not bench.has_virtual_time:
        return
    counted = subprocess.run([PROGRAM, "stat", "--accel", bench.accel, "--kernel", bench.kernel, "--quiet", "--time", "pipeline", "-e", "cycles", "--json", "-", "--", *command], env=files.environment(),
                             cwd=bench.directory, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=True)
    without = json.loads(counted.stdout)["events"][0]["value"]
    print(f"{total} cycles with {samples} samples, {without} without: {total / without:.4f}")
    within(total / without, 0.97, 1.03, "cycles with samples by those without")


def test_a_run_that_is_stopped_leaves_a_report(bench):
    done = bench.profile("--timeout", "12", name="stopped", command=("sh", "-c", "while :; do :; done"))
    same(done.returncode, 124, f"the exit code ({done.stderr:.500})")
    contains(done.stderr, "the command was ended after 12 s (--timeout)", "the message")
    report = Report(bench.directory / "stopped")
    same((report.data["run"]["stopped"], report.data["run"]["exit_code"]), (True, 124), "what the report says")
    if report.data["events"][CYCLES]["samples"] < 20:
        raise AssertionError(f"{report.data['events'][CYCLES]['samples']} samples of {report.data['run']}")


def test_known_function_is_hot(bench):
    report = Report(bench.of("profile", *MANY))
    hot, cold = report.share(HOT, CYCLES), report.share("cold_work", CYCLES)
    # 4 : 1 by the program.
    within(hot / cold, 3.2, 5, "cycles of the hot function by those of the cold one")
    # Four operations of a cycle, each of the one before, in each of 400,000 rounds. Between two samples Linux takes two to three thousand to come and go.
    if bench.has_virtual_time:
        same(report.data["run"]["time"], "pipeline", "whose cycles they are")
        within(hot * report.data["total"][CYCLES], 1.6e6, 2.2e6, "cycles of the hot function")
    same(report.data["notes"], [], "notes of what is missing")
    # 60,000 loads from memory, each of an address that the one before gives.
    same(max(set(report.names), key=lambda name: report.share(name, CYCLES)), "far_loads", "the hottest function")
    listing = [each for each in report.data["annotated"] if report.names[each["name"]] == HOT][0]["lines"]
    loop = [line for line in listing if line["samples"][0]]
    within(len(loop), 6, 10, "instructions with samples")
    same({line["source"].split(":")[0] for line in loop}, {"profiled.c"}, "their source")


def test_loads_are_at_their_level(bench):
    report = Report(bench.of("profile", *MANY))
    near, far = report.levels("near_loads"), report.levels("far_loads")
    within(near.get("L1", 0) / sum(near.values()), 0.95, 1, f"loads of the L1 in near_loads: {near}")
    beyond = sum(far.get(level, 0) for level in ("fill buffer", "L3", "memory"))
    within(beyond / sum(far.values()), 0.7, 1, f"loads beyond the L2 in far_loads: {far}")
    within(report.share(HOT, LOADS), 0, 0.01, "loads of a function that has none")


def test_mispredictions_are_in_the_known_branch(bench):
    report = Report(bench.of("profile", *MANY))
    # The timer's interrupts return by way of one instruction of the kernel's.
    worst = next(each for each in report.data["branches"] if bench.has_virtual_time or "thunk" not in report.names[each["name"]])
    same(report.names[worst["name"]], "hard_branch", "the function with the worst branch")
    # The better half of 40,000, on one instruction.
    within(worst["mispredictions"], 19000, 25000 if bench.has_virtual_time else 60000, "its mispredictions")
    lines = [line for each in report.data["annotated"] if each["name"] == worst["name"] for line in each["lines"] if line["offset"] == worst["offset"]]
    same([line["text"].split()[0] for line in lines], ["je"], "its instruction")


@pytest.mark.always
def test_perf_of_this_machine_reads_it(bench):
    directory = bench.of("profile", *MANY)
    command = ["perf", "script", "-i", directory / "perf.data", "--kallsyms", directory / "kallsyms", "-G", "-F", "event,ip,sym"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.splitlines()
    # "cycles:  55550001 name"
    seen = collections.Counter((line.split(":")[0].strip(), line.split(maxsplit=2)[2].strip()) for line in lines if line.strip())
    samples = {event: sum(count for (each, _), count in seen.items() if each == event) for event in EVENTS}
    report = Report(directory)
    same(samples, {event["aspect"]: event["samples"] for event in report.data["events"]}, "the samples of each event")
    for event, symbol in (("cycles", HOT), ("loads", "near_loads"), ("mispredictions", "hard_branch")):
        within(sum(count for (each, name), count in seen.items() if (each, name) == (event, symbol)), 20, 1e6, f"samples of {event} in {symbol}")
    within(sum("page" in name for _, name in seen), 3, 1e6, "names of the guest's kernel")
    text = subprocess.run(["perf", "report", "-i", directory / "perf.data", "--stdio", "--no-children"], capture_output=True, text=True, check=True, timeout=120).stdout
    contains(text, "hard_branch", "what perf report says")


def test_equal_again(bench):
    first, second = bench.of("profile", *MANY), bench.of("again", *MANY)
    assert (second / "report.html").read_bytes() == (first / "report.html").read_bytes(), f"the reports of two runs differ: {first} and {second}"


def test_model_without_a_precise_event(bench):
    """A Nehalem: its mispredictions are not precise, and the report says so."""
    report = Report(bench.of("nehalem", *MANY, "--model", "nehalem"))
    same(len(report.data["lacking"]), 1, f"things that are lacking: {report.data['lacking']}")
    within(report.share(HOT, CYCLES), 0.1, 0.9, "the hot function's share")
    within(min(event["samples"] for event in report.data["events"]), 20, 1e6, "samples of each event")


def test_streams_and_exit_code(bench):
    done = bench.profile("--quiet", name="code", command=("sh", "-c", "echo out; echo err >&2; exit 42"))
    same((done.returncode, done.stdout, done.stderr), (42, "out\n", "err\n"), "exit code, output and errors")
    same(sorted(path.name for path in (bench.directory / "code").iterdir()), ["kallsyms", "perf.data", "report.html"], "what is left")


def test_says_where_the_report_is(bench):
    bench.of("profile", *MANY)
    lines = bench.made["profile"].stderr.splitlines()
    same(lines[-1], "vpmu profile: the report is in profile/report.html", "the last line")


def test_wrong_use_is_one_line(bench):
    for options, words in ((("--model", "z80"), "unknown model z80"),
                           (("--call-graph", "magic"), "give fp, dwarf or lbr"), (("--period", "99999999999"), "longer than a counter")):
        done = bench.profile(*options, name="wrong")
        same((done.returncode, len(done.stderr.splitlines()), words in done.stderr), (125, 1, True), f"code, lines and words of {done.stderr!r}")
    done = bench.profile(name="prog")
    same((done.returncode, len(done.stderr.splitlines()), "cannot make the directory" in done.stderr), (125, 1, True), f"code, lines and words of {done.stderr!r}")


class Page(html.parser.HTMLParser):
    """What a browser has made of a report: how many of each there are, and what it says."""

    def __init__(self, text):
        super().__init__()
        self.frames, self.rows, self.sections, self.title, self.heads, self.unlabelled = [], 0, 0, "", 0, 0
        self.open = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if attributes.get("role") == "treeitem":
            self.frames.append(attributes.get("aria-label", ""))
        self.rows += tag == "tr"
        self.heads += tag == "th" and attributes.get("scope") == "col"
        if tag == "section":
            self.sections += 1
            self.unlabelled += "aria-labelledby" not in attributes
        self.open.append(tag)

    def handle_data(self, data):
        if self.open and self.open[-1] == "title" and not self.title:
            self.title = data

    def handle_endtag(self, tag):
        self.open.pop()


def browse(bench, directory, *options):
    # A profile of its own, and no way to the network: the page needs neither.
    with tempfile.TemporaryDirectory() as home:
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={home}", "--enable-logging=stderr",
                   "--proxy-server=127.0.0.1:9", *options, f"file://{directory}/report.html"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    same([line for line in done.stderr.splitlines() if "CONSOLE" in line], [], "what the page says to the console")
    return done.stdout


def check_page(bench, name):
    """The page draws itself, in light and dark."""
    directory = bench.directory / name
    report = Report(directory)
    page = Page(browse(bench, directory, "--dump-dom"))
    within(len(page.frames), 20, 100000, "frames of the flame graph")
    within(page.rows, 30, 100000, "rows of its tables")
    within(page.heads, 15, 1000, "heads of columns")
    same((page.sections, page.unlabelled), (6, 0), "sections, and those without a name")
    same(page.title, f"vpmu profile: {' '.join(report.data['run']['command'])}", "the title")
    pictures = []
    # blink::mojom::PreferredColorScheme: dark, light.
    for number, scheme in enumerate(("dark", "light")):
        picture = directory / f"{scheme}.png"
        browse(bench, directory, f"--screenshot={picture}", "--window-size=1400,4300", f"--blink-settings=preferredColorScheme={number}")
        pictures.append(picture.read_bytes())
    same(len(set(pictures)), 2, "pictures that differ")
    return page


def test_page_in_a_browser(bench):
    bench.of("profile", *MANY)
    page = check_page(bench, "profile")
    assert any(HOT in frame for frame in page.frames), f"no frame names the hot function: {page.frames[:50]}"


def test_story_redis(bench):
    """A server that answers over the loopback. With KVM in the bed its guest has little but timer interrupts to run."""
    period, requests, clients = ("50021", 300, 4) if bench.has_virtual_time else ("5000011", 20, 1)
    directory = bench.of("redis", "--time", "instructions", "--period", period, command=("sh", "-c", REDIS.format(requests=requests, clients=clients)))
    report = Report(directory)
    server = sum(totals[CYCLES] for parent, name, totals in report.data["nodes"][1:] if parent == 0 and report.names[name] == "redis-server")
    within(server / report.data["total"][CYCLES], 0.1, 1, "the server's share of cycles")
    network = [name for name in report.names if name.startswith("tcp_")]
    if bench.has_virtual_time:
        within(len(network), 5, 1e6, "functions of the kernel's TCP")
        check_page(bench, "redis")
