"""An application whose tasks and declared jobs differ from deploy to deploy, for tests/cluster/test_deploys.py."""

from __future__ import annotations

import os
import time

from duly import Context, Duly

DEPLOY = int(os.environ["DULY_DEPLOY"])
app = Duly(name="shop")
_sink = os.open(os.environ["SINK"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


async def work(ctx: Context, **_: object) -> None:
    line = f"{ctx.run_id} {ctx.attempt} {ctx.fencing_token} {os.getpid()} started {time.time():.6f}\n"
    os.write(_sink, line.encode())


app.task("work")(work)
# A task that is new with each deploy; the deploys after it have it too, so that its runs can end.
for number in range(1, DEPLOY + 1):
    app._register(work, f"work_{number}", "default", 5, app.tasks["work"].policy, "thread")

# A job whose schedule and payload change with each deploy.
app.cron(f"*/{1 + DEPLOY % 2} * * * * *", name="tick", payload={"deploy": DEPLOY}, overlap="parallel")(work)
# A job that is renamed with each deploy.
app.cron("* * * * * *", name=f"report_{DEPLOY}", renamed_from=[f"report_{n}" for n in range(DEPLOY - 1, 0, -1)])(work)
# A job that only this deploy declares. Its task stays: a run may have been fired just before the job is paused.
app.cron("* * * * * *", name=f"extra_{DEPLOY}")(work)
for number in range(1, DEPLOY):
    app._register(work, f"extra_{number}", "default", 5, app.tasks["work"].policy, "thread")
