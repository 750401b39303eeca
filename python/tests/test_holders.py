"""What a look at everything alive says about containers that are known."""
import sys
import unittest
from collections import deque

import support  # noqa: F401 (finds the package)
from model_garden.experiment import holders


def one_of_many(number):
    """Five hundred strings in a dict, so that a few hundred of these are more than is weighed one by one."""
    return {f"{number}-{place}": f"{place:0{20 + number % 50}d}" for place in range(500)}


def weight(thing):
    parts = [thing, *thing, *thing.values()]
    return sum(map(sys.getsizeof, parts))


class Weights(unittest.TestCase):
    def setUp(self):
        self.things = [one_of_many(number) for number in range(1000)]
        self.exact = sum(map(weight, self.things))
        self.assertGreater(1000 * 1000, 4 * holders.MOST_WEIGHED)

    def test_a_container_of_more_objects_than_are_weighed(self):
        for container in (self.things, deque(self.things), dict(enumerate(self.things))):
            with self.subTest(type(container)):
                self.assertAlmostEqual(holders._weight(container, len(container)) / self.exact, 1.0, delta=0.03)

    def test_what_all_share_is_counted_once(self):
        shared = bytes(self.exact)
        container = [[thing, shared] for thing in self.things]
        self.assertAlmostEqual(holders._weight(container, len(container)) / self.exact, 2.0, delta=0.05)

    def test_small_containers_are_weighed_wholly(self):
        kept = [bytes(size) for size in range(100, 200)]
        self.assertEqual(holders._weight(kept, 10), sum(map(sys.getsizeof, kept[-10:])))
        self.assertEqual(holders._weight(bytearray(7), 5), 5)
        self.assertEqual(holders._weight([], 0), 0)

    def test_places_are_all_there_and_lie_evenly(self):
        for length in (1, 2, 3, 10, 97, 1000):
            places = list(holders._spread(length))
            self.assertEqual(sorted(places), list(range(length)))
        first = sorted(list(holders._spread(1000))[:50])
        self.assertLess(max(after - before for before, after in zip(first, first[1:])), 80)


if __name__ == "__main__":
    unittest.main()
