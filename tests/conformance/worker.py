"""Runs cases of rdma-core's suite one after the other and reports each on a pipe.

usage: worker.py TREE DEVICE REPORT_FD [ID...]     (TREE: an unpacked rdma-core; without ID: lists the generic cases)

A report is a line of JSON: ["start", id], then ["end", id, outcome, reason]. The process may die at any time: the
runner knows from the last line which case did it.
"""

import json
import os
import sys
import unittest

# Interfaces of other vendors; the other files of the tree are generic.
NOT_GENERIC = ("test_mlx5_", "test_efa")


class Reporter(unittest.TestResult):
    """One outcome per case; of several (subtests, tearDown) the worst counts."""

    RANK = {"pass": 0, "skip": 1, "fail": 2}

    def __init__(self, tell):
        super().__init__()
        self.tell = tell
        self.outcome = ("pass", "")

    def note(self, outcome, reason):
        if self.RANK[outcome] > self.RANK[self.outcome[0]]:
            self.outcome = (outcome, " ".join(str(reason).split()))

    def startTest(self, test):
        super().startTest(test)
        self.outcome = ("pass", "")
        self.tell(["start", test.id()])

    def stopTest(self, test):
        super().stopTest(test)
        self.tell(["end", test.id(), *self.outcome])

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note("skip", reason)

    def addFailure(self, test, err):
        self.addError(test, err)

    def addError(self, test, err):
        super().addError(test, err)
        self.note("fail", f"{err[0].__name__}: {err[1]}")
        print(f"=== {test.id()}", self._exc_info_to_string(err, test), file=sys.stderr, flush=True)

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err:
            self.note("fail", f"{err[0].__name__}: {err[1]}")

    def addUnexpectedSuccess(self, test):
        self.note("fail", "unexpected success")


def cases(suite):
    for part in suite:
        if isinstance(part, unittest.TestSuite):
            yield from cases(part)
        else:
            yield part


def generic(tree):
    """All generic cases by id."""
    import tests

    found = {}
    for module in tests.__test_modules__:
        if module.__name__.rsplit(".", 1)[1].startswith(NOT_GENERIC):
            continue
        for case in cases(unittest.defaultTestLoader.loadTestsFromModule(module)):
            # A class that a module imports belongs to the module that defines it.
            if type(case).__module__ == module.__name__:
                found[case.id()] = case
    return found


def our_libraries_are_loaded():
    """The directories from which the verbs libraries were loaded."""
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if "libibverbs.so" in line or "librdmacm.so" in line}
    return sorted(paths)


def main():
    tree, device, report, *wanted = sys.argv[1:]
    # Last, so that the built modules (PYTHONPATH) win over the sources of the same name.
    sys.path += [tree, os.path.join(tree, "tests")]
    pipe = os.fdopen(int(report), "w", buffering=1)
    os.set_inheritable(pipe.fileno(), False)

    def tell(words):
        pipe.write(json.dumps(words) + "\n")

    from args_parser import parser

    sys.argv = ["run_tests", "--dev", device]
    parser.parse_args()
    found = generic(tree)
    tell(["libraries", our_libraries_are_loaded()])
    if not wanted:
        tell(["cases", sorted(found)])
        return
    # As with the suite's own runner, cases share nothing: setUpClass and the like run per case.
    for name in wanted:
        unittest.TestSuite([found[name]]).run(Reporter(tell))


main()
