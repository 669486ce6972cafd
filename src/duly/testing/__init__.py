"""For users' own tests: jobs run on a real store and a virtual clock, a year in seconds. Manual: docs/testing.md.

```python
pytest_plugins = ["duly.testing"]  # conftest.py


async def test_weekly_digest(duly_test):
    await duly_test.at(datetime(2026, 1, 1, tzinfo=UTC))
    duly_test.use(app)
    await duly_test.submit(weekly_digest, schedule="0 9 * * MON", timezone="America/New_York")
    assert len(await duly_test.advance(weeks=52)) == 52
```

Read in this order: `server` makes a store; `virtual` moves its clock from event to event and lets the product's firer
and the `stepped_worker` do what is due at each; `binding` redirects the user's apps to that store. `clock` and
`single_connection` serve `virtual`. `schedules` stands alone: it needs no store.
"""

from importlib.util import find_spec

from duly.testing.schedules import occurrences
from duly.testing.server import StoreServer, running_server
from duly.testing.virtual import DulyTest

__all__ = ["DulyTest", "StoreServer", "duly_test", "duly_test_server", "occurrences", "running_server"]

# pytest is optional: the rest is also useful in a script, or under another test runner.
if find_spec("pytest") is not None:
    from duly.testing.fixtures import duly_test, duly_test_server
