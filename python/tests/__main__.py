"""Runs all tests of this folder, as `python python/tests`; words are those of unittest. Each test that is skipped says so in a line of its own."""
import os
import sys
import unittest


class Result(unittest.TextTestResult):
    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.stream.write(f"skipped: {test.id() if hasattr(test, 'id') else test}: {reason}\n")


if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    runner = unittest.TextTestRunner(resultclass=Result, verbosity=2)
    unittest.main(module=None, argv=["python/tests", "discover", "-s", here, *sys.argv[1:]], testRunner=runner)
