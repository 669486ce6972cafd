from duly.model import JobRequest
from duly.operations import Operations


async def test_a_submitted_job_can_be_read_back(operations: Operations) -> None:
    submitted = await operations.submit(JobRequest("greet", payload={"who": "you"}, schedule="every 15m"))
    job = await operations.get_job(str(submitted.job_id))
    assert job.handler == "greet"
    assert job.payload == {"who": "you"}
    assert job.schedule == "every 15m"
    assert job.next_run_at is not None
