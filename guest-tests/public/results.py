"""What public tests print, as numbers of passed lines and the lines that did not pass."""

import collections
import re

Reason = collections.namedtuple("Reason", "suite test line reason")
Result = collections.namedtuple("Result", "passed failed skipped")  # a number and two lists of lines
Judged = collections.namedtuple("Judged", "explained unexplained used")


def matches(pattern, text):
    """Whether the text has the pattern's form, in which * stands for any characters."""
    return re.fullmatch(".*".join(re.escape(part) for part in pattern.split("*")), text) is not None


def sections(config):
    """The tests in a unittests.cfg that this architecture has, without those that only run when they are asked for."""
    found = []
    for line in config.splitlines():
        line = line.strip()
        if header := re.fullmatch(r"\[(.*)\]", line):
            found.append({"name": header[1]})
        elif found and "=" in line and not line.startswith("#"):
            key, value = line.split("=", 1)
            found[-1][key.strip()] = value.strip()
    for test in found:
        asked = re.search(r"(?:^|\s)-m (\d+)(g?)", test.get("qemu_params", ""))
        megabytes = int(asked[1]) * (1024 if asked[2] else 1) if asked else 512
        test["memory"] = f"{min(megabytes, 2048)}M"
        test["cpus"] = test.get("smp", "1")
        test["arguments"] = test.get("test_args", "").strip("'\"")
    return [test for test in found if test.get("arch") != "i386" and "nodefault" not in test.get("groups", "") and "file" in test]


def of_kvm_unit_test(text, code):
    lines = [line.strip("\r\n ") for line in text.splitlines()]
    failed = [line.removeprefix("FAIL: ") for line in lines if line.startswith("FAIL: ")]
    skipped = [line.removeprefix("SKIP: ") for line in lines if line.startswith("SKIP: ")]
    passed = sum(line.startswith("PASS: ") for line in lines)
    # 8 is what a test that has failed lines, or only skipped ones, ends with.
    if code not in (0, 8) or (code == 8 and not failed and (passed or not skipped)):
        failed.append(f"ended with {code}")
    return Result(passed + (code == 0), failed, skipped)


def of_selftest(text, code):
    """Linux's selftests: 0 is success, 4 is that the test cannot run here."""
    lines = [line.strip() for line in text.splitlines()]
    failed = [line.removeprefix("[FAIL]").strip() for line in lines if line.startswith("[FAIL]")]
    skipped = [line.removeprefix("[SKIP]").strip() for line in lines if line.startswith("[SKIP]")]
    if code == 4:
        return Result(0, failed, skipped or ["the whole test"])
    if code != 0 and not failed:
        failed = [f"ended with {code}"]
    return Result(sum(line.startswith("[OK]") for line in lines) + (code == 0), failed, skipped)


def of_perf_event_test(text, code):
    """Each prints one word at the end; a few print nothing when all is well."""
    words = re.findall(r"\b(PASSED|FAILED|SKIPPED|UNEXPLAINED|UNIMPLEMENTED|KERNEL BUG)\b", re.sub(r"\x1b\[[0-9;]*m", "", text))
    if code is None:
        return Result(0, ["does not end"], [])
    bad = [word for word in words if word not in ("PASSED", "SKIPPED")]
    if not words and code != 0:
        bad = [f"ended with {code}"]
    return Result(words.count("PASSED") + (not words and code == 0), bad, [word for word in words if word == "SKIPPED"])


def judge(test, result, reasons):
    """Finds the reason of each line that did not pass."""
    explained, unexplained, used = [], [], set()
    for line in dict.fromkeys(result.failed):
        reason = next((r for r in reasons if matches(r.test, test) and matches(r.line, line)), None)
        if reason is None:
            unexplained.append(line)
        else:
            explained.append((line, reason.reason))
            used.add(reason)
    return Judged(explained, unexplained, used)


def malformed(reasons, suites):
    """What is wrong with the reasons' file itself."""
    wrong = [f"no suite {reason.suite}" for reason in reasons if reason.suite not in suites]
    wrong += [f"{reason.suite} {reason.test} has no reason" for reason in reasons if not reason.reason or not reason.line]
    counts = collections.Counter((reason.suite, reason.test, reason.line) for reason in reasons)
    return wrong + [f"{' '.join(key)} is there twice" for key, number in counts.items() if number > 1]


def table(rows):
    lines = ["| suite | test | passed | not passed | why |", "|---|---|---|---|---|"]
    for suite, name, result, judged in rows:
        why = dict.fromkeys(reason for _, reason in judged.explained)
        if judged.unexplained:
            why["no reason: " + "; ".join(judged.unexplained)] = None
        if result.skipped and not result.failed:
            why["skips: " + "; ".join(dict.fromkeys(result.skipped))] = None
        text = "; ".join(why).replace("|", "\\|")
        lines.append(f"| {suite} | {name} | {result.passed} | {len(result.failed)} | {text} |")
    return "\n".join(lines) + "\n"
